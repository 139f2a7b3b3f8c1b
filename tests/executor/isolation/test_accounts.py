"""Users' own accounts: which a user has, and who becomes them, once and for all."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.errors import ExecutorUnavailable
from sharedkernel.executor.isolation.accounts import NUMBERS_FILE
from sharedkernel.executor.processes.process import PersistedSession, start_time
from sharedkernel.executor.processes.records import read_record
from sharedkernel.paths import RECORDS_DIRECTORY
from sharedkernel.protocol import Limits
from tests.executor.harness import ExecutorProcess, until
from tests.executor.isolation import ADA, FIRST_UID, ApartExecutor, Executor, needs_root

pytestmark = needs_root


@pytest.mark.heavy
async def test_numbers_stay_and_are_nobody_else_s(apart: ApartExecutor) -> None:
    """A user has the same number in every session and after a restart; names that look alike have others."""
    async with Executor(apart) as executor:
        first = {}
        for user in (ADA, ADA.title(), f"../{ADA}", f".{ADA}"):
            notebook = await executor.notebook(user)
            first[user] = (await notebook.run("import os; os.getuid(), os.getcwd()")).text
        assert len(set(first.values())) == 4
        await executor.replace()
        again = await executor.notebook(f"../{ADA}")
        assert (await again.run("import os; os.getuid(), os.getcwd()")).text == first[f"../{ADA}"]
        given = json.loads((apart.homes / NUMBERS_FILE).read_text())["uids"]
        assert len(set(given.values())) == len(given)
        assert all(Path(folder).parent == apart.homes for _, folder in map(ast.literal_eval, first.values()))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--uid-range", "0-10"], "takes in user ids of the system's own"),
        (["--uid-range", "many"], "'many' is no range of user ids"),
        (["--uid-range", "300000-200000"], "the first comes before the last"),
    ],
)
def test_a_wrong_range_gets_one_sentence(options: list[str], expected: str, tmp_path: Path) -> None:
    """The executor does not start."""
    command = [sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", str(tmp_path / "run"), *options]
    done = subprocess.run([*command, "--homes", str(tmp_path / "h")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_what_was_forked_before_users_were_kept_apart_serves_nobody_new() -> None:
    """Sessions that run go on as they are; a spare, which could still gain rights, is no user's any more."""
    rights = "import os; os.getuid(), 'NoNewPrivs:\\t1' in open('/proc/self/status').read()"

    class LaterApart(ApartExecutor):
        is_apart = False

    process = LaterApart()

    async def main() -> None:
        async with Executor(process) as executor:
            before = await executor.notebook()
            assert (await before.run(rights)).text == "(0, False)"
            await until(lambda: len(list(process.runtime_directory.glob("s/*.json"))) == 2, "there is a spare")
            process.is_apart = True
            await executor.replace()
            assert (await before.run(rights)).text == "(0, False)"
            after = await executor.notebook()
            uid, is_held = ast.literal_eval((await after.run(rights)).text)
            assert uid in range(FIRST_UID, FIRST_UID + 100)
            assert is_held

    try:
        asyncio.run(main())
    finally:
        process.close()


def kept_spares(process: ExecutorProcess) -> list[PersistedSession]:
    """Return the spares as the next executor would find them."""
    found = []
    for path in (process.runtime_directory / RECORDS_DIRECTORY).iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was just being written, or its process has just ended
            found.append(read_record(path))
    return [kept for kept in found if kept is not None and kept.session is None]


async def a_spare(process: ExecutorProcess) -> PersistedSession:
    """Return a spare, once there is one."""

    async def spare() -> PersistedSession | None:
        return next(iter(kept_spares(process)), None)

    found: PersistedSession = await until(spare, "there is a spare")
    return found


async def test_spares_that_were_forked_for_users_outlive_the_executor(apart: ApartExecutor) -> None:
    """The next executor keeps them: they were made ready for what it does with them."""
    async with Executor(apart) as executor:
        spare = await a_spare(apart)
        await executor.replace()
        await executor.notebook()
        assert start_time(spare.pid) == spare.started


async def test_a_session_that_was_not_yet_its_user_s_is_not_adopted(apart: ApartExecutor) -> None:
    """The executor ended between giving a spare to a user and the spare's becoming the user: it still has rights."""
    async with Executor(apart) as executor:
        spare = await a_spare(apart)
        os.kill(spare.pid, signal.SIGSTOP)  # it does not hear that it is given away
        start = asyncio.create_task(executor.client.start_session("half-given", Limits(user=ADA)))

        async def is_given() -> bool:
            return "half-given" in [record.session for record in await executor.client.sessions()]

        await until(is_given, "the spare is given away")
        await executor.replace()
        with pytest.raises(ExecutorUnavailable):
            await start
        assert not await is_given()
        await until(lambda: start_time(spare.pid) != spare.started, "it is ended")
        assert (await (await executor.notebook()).run("import os; os.getuid() >= 1000")).text == "True"
