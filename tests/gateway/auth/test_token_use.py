"""When tokens were last used: listed, and written seldom."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.gateway.auth.token_use import TokenUse, read_token_use
from sharedkernel.gateway.auth.tokens import TokenFile
from tests.gateway.client import Client
from tests.gateway.conftest import Stack, run


def listed(path: Path) -> dict[str, str | None]:
    """Return when the token of each user was last used, as the command lists it."""
    command = [sys.executable, "-m", "sharedkernel", "token", "list", "--json", "--tokens-file", str(path)]
    entries = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {entry["user"]: entry["last_used"] for entry in entries}


async def test_use_is_written_at_once_and_then_seldom(tmp_path: Path) -> None:
    """What comes soon after a write waits for the next one, or for the end; removed tokens are forgotten."""
    path, known = tmp_path / "tokens.json", {"aaaa", "bbbb", "cccc"}

    use = TokenUse(path, lambda: known)
    use.record("aaaa")
    await asyncio.sleep(0)
    while not read_token_use(path):  # noqa: ASYNC110  # a callback of the loop writes it
        await asyncio.sleep(0)
    for name in ("aaaa", "bbbb"):
        use.record(name)
    await asyncio.sleep(0.01)
    assert set(read_token_use(path)) == {"aaaa"}
    known.discard("aaaa")
    use.store()
    assert set(read_token_use(path)) == {"bbbb"}
    again = TokenUse(path, lambda: known)
    again.record("cccc")
    again.store()
    assert set(read_token_use(path)) == {"bbbb", "cccc"}
    assert (tmp_path / "tokens_used.json").stat().st_mode & 0o777 == 0o600


async def test_a_file_that_cannot_be_used_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is taken for empty; one that cannot be written is logged once."""
    path = tmp_path / "tokens.json"
    (tmp_path / "tokens_used.json").write_text('{"used": [1]}')
    assert read_token_use(path) == {}

    use = TokenUse(tmp_path / "missing" / "tokens.json", lambda: {"aaaa"})
    for _ in range(2):
        use.record("aaaa")
        use.store()
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "tokens_used.json cannot be written" in caplog.records[0].message


def test_the_gateway_records_the_use_of_right_tokens(stack: Stack) -> None:
    """Without writing to the file of tokens; at its end it writes what is left."""
    path = stack.directory / "tokens.json"
    file = TokenFile(path)
    file.add("unused")
    token = file.add("used")

    async def scenario() -> None:
        before = path.stat()
        assert (await Client(stack.gateway_url, token).request("GET", "/api/kernels")).status == 200
        after = path.stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)

    try:
        run(scenario())
        stack.gateway.stop()
        stack.restart_gateway()
        found = listed(path)
        assert found["unused"] is None
        assert found["used"] is not None
    finally:
        file.remove("used", "unused")
