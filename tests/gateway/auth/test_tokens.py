"""Users' tokens: the file and the command."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.tokens import TokenExpired, TokenFile, TokenUse, read_token_use
from sharedkernel.units import parse_expiry
from tests.command import run_here
from tests.executor.isolation import GATEWAY, needs_root, readable_by_all
from tests.gateway.client import Client
from tests.gateway.conftest import Stack


def test_a_token_names_its_user_and_nobody_else(tmp_path: Path) -> None:
    """Only the whole, right token is somebody's; the file holds none, is private, and counts as it is now."""
    path = tmp_path / "sub" / "tokens.json"
    file, command = TokenFile(path), TokenFile(path)
    ada, grace = command.add("ada"), command.add("grace")
    assert (file.user_for(ada), file.user_for(grace)) == ("ada", "grace")
    prefix, name, secret = ada.split("-")
    wrong = ["", "x", ada[:-1], ada + "0", f"{prefix}-{name}-", f"{prefix}-{name}-{grace.split('-')[2]}", secret]
    assert [file.user_for(token) for token in wrong] == [None] * len(wrong)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text()
    assert [entry.name for entry in path.parent.iterdir()] == ["tokens.json"]
    assert command.remove("ada") == 1
    assert file.user_for(ada) is None
    for unfit in ("", "-ada", "a b", "ada\n", "x" * 65, "ädä"):
        with pytest.raises(ConfigError, match="cannot be a user's name"):
            command.add(unfit)


def test_adding_in_parallel_loses_none(tmp_path: Path) -> None:
    """Writers wait for each other."""
    path = tmp_path / "tokens.json"
    users = [f"user{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda user: TokenFile(path).add(user), users))
    file = TokenFile(path)
    assert [file.user_for(token) for token in tokens] == users


def test_a_file_open_to_others_or_damaged_lets_nobody_in(tmp_path: Path) -> None:
    """It is refused with a sentence, not read as empty."""
    path = tmp_path / "tokens.json"
    token = TokenFile(path).add("ada")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        TokenFile(path).user_for(token)
    path.chmod(0o600)
    stored = {"user": "ada", "salt": "", "hash": "", "created": "", "expires": "2030-01-01T00:00:00"}
    for content in ("[]", json.dumps({"tokens": {"a": stored}}), json.dumps({"tokens": {"a": {"role": "admin"}}})):
        path.write_text(content)
        with pytest.raises(ConfigError, match="cannot be read as a file of tokens"):
            TokenFile(path).user_for(token)
    path.write_text(json.dumps({"version": 1, "tokens": {"a": stored | {"expires": "2030-01-01T00:00:00+00:00"}}}))
    assert not TokenFile(path).tokens()["a"].has_expired


def test_a_file_that_is_gone_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Before the first token there is none; later it went with its disk, say, and takes nobody's rights away."""
    path = tmp_path / "tokens.json"
    gateway = TokenFile(path)
    assert gateway.tokens() == {}
    token = TokenFile(path).add("ada")
    assert gateway.user_for(token) == "ada"
    path.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="No such file"):
        gateway.user_for(token)
    (tmp_path / "away").rename(path)
    assert gateway.user_for(token) == "ada"


def command(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_here("token", *arguments, "--tokens-file", str(path))


def users_as_seen_by(account: pwd.struct_passwd, path: Path) -> list[str]:
    """Return whose tokens another account finds in the file."""
    become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    line = [*become, sys.executable, "-m", "sharedkernel", "token", "list", "--json", "--tokens-file", str(path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "HOME": "/"}
    listed = subprocess.run(
        readable_by_all(line), cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert listed.returncode == 0, listed.stderr
    return [entry["user"] for entry in json.loads(listed.stdout)]


@pytest.fixture
def gateways_own() -> Iterator[Path]:
    """Yield a directory of the gateway's account, which reaches it."""
    account = pwd.getpwnam(GATEWAY)
    with tempfile.TemporaryDirectory(prefix="sk-tokens-") as directory:
        os.chown(directory, account.pw_uid, account.pw_gid)
        yield Path(directory)


@needs_root
def test_what_root_changes_stays_readable_to_the_gateway_s_account(gateways_own: Path) -> None:
    """From the first token on: or everybody would be locked out by one who is let in."""
    path = gateways_own / "tokens.json"
    account = pwd.getpwnam(GATEWAY)
    for change, users in (
        (("add", "ada"), ["ada"]),
        (("add", "grace"), ["ada", "grace"]),
        (("remove", "ada"), ["grace"]),
    ):
        assert command(path, *change).returncode == 0
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (account.pw_uid, account.pw_gid, 0o600)
        assert users_as_seen_by(account, path) == users
    assert [entry.name for entry in gateways_own.iterdir()] == ["tokens.json"]
    path.chmod(0o400)
    os.chown(path, account.pw_uid, 1)
    assert command(path, "add", "ada").returncode == 0
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (account.pw_uid, 1, 0o400)


def test_tokens_are_not_changed_through_a_link(tmp_path: Path) -> None:
    """Whoever owns the directory could have root hand them a file that they may not read; it says what to name."""
    path, kept = tmp_path / "tokens.json", tmp_path / "kept" / "tokens.json"
    token = TokenFile(kept).add("ada")
    before = _unread(kept)
    path.symlink_to(kept)
    assert TokenFile(path).user_for(token) == "ada"  # a gateway may read one all the same
    refused = command(path, "add", "grace")
    assert refused.returncode == 1
    assert refused.stderr == f"sharedkernel: {path} is a link; name the file that it leads to with --tokens-file.\n"
    assert path.is_symlink()
    assert _unread(kept) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["kept", "tokens.json"]


def _unread(path: Path) -> tuple[int, ...]:
    """Return what the system has of a file that is not changed by reading it."""
    stat = path.stat()
    return stat.st_ino, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


def test_a_moment_to_come_is_written_as_people_write_it(tmp_path: Path) -> None:
    """A time that has passed is tomorrow's; a day is included. Anything else is refused, and no token made."""
    for text, moment in (
        ("18:00", "2026-03-01T18:00:00+02:00"),
        ("9:30", "2026-03-02T09:30:00+02:00"),
        ("2026-03-01", "2026-03-02T00:00:00+02:00"),
        ("2026-12-31 18:00", "2026-12-31T18:00:00+02:00"),
        ("2026-12-31T18:00+00:00", "2026-12-31T18:00:00+00:00"),
        ("90d", "2026-05-30T12:00:00+02:00"),
    ):
        assert parse_expiry(text, NOON) == datetime.datetime.fromisoformat(moment)
    for text in ("", "soon", "25:00", "2026-13-01", "2026-02-28", "-1d", "9" * 30 + "d", "0s"):
        with pytest.raises(ConfigError, match=r"is no moment; write|has passed already"):
            parse_expiry(text, NOON)
    assert command(tmp_path / "tokens.json", "add", "ada", "--expires=soon").returncode == 1
    assert not (tmp_path / "tokens.json").exists()


@pytest.mark.heavy
def test_the_command_adds_lists_and_removes(tmp_path: Path) -> None:
    """All that are named or none, until a date if there is one; one of several tokens by how it begins."""
    path = tmp_path / "tokens.json"
    for line, status in ((("add", "ada", "gr ace"), 1), (("add", "ada", "ada"), 2), (("frobnicate",), 2)):
        assert command(path, *line).returncode == status
        assert not path.exists()
    tokens = dict(line.split() for line in command(path, "add", "ada", "grace").stdout.splitlines())
    assert [TokenFile(path).user_for(token) for token in tokens.values()] == ["ada", "grace"]
    expiring = json.loads(command(path, "add", "hedy", "--expires", "2999-12-31", "--json").stdout)
    assert expiring["expires"] >= "2999-12-31"
    kept = command(path, "add", "ada").stdout.strip()
    listed = json.loads(command(path, "list", "--json").stdout)
    assert [(entry["user"], entry["expires"]) for entry in listed] == [
        ("ada", None), ("ada", None), ("grace", None), ("hedy", expiring["expires"])
    ]  # fmt: skip
    (begin,) = [entry["id"] for entry in listed if tokens["ada"].startswith(entry["id"])]
    assert begin in command(path, "list").stdout
    assert TokenFile(path).user_for(begin) is None, "it is no secret, and lets nobody in"
    assert "removed 1 token(s) of ada" in command(path, "remove", begin).stdout
    assert [TokenFile(path).user_for(token) for token in (tokens["ada"], kept)] == [None, "ada"]
    assert command(path, "remove", "ada").returncode == 0
    again = command(path, "remove", "ada")
    assert (again.returncode, "there is no token of 'ada'" in again.stderr) == (1, True)


def test_an_expired_token_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """The right one only: whoever guesses learns nothing."""
    file = TokenFile(tmp_path / "tokens.json")
    now = datetime.datetime.now(datetime.UTC)
    ended = file.add("ada", expires=now - datetime.timedelta(seconds=1))
    good = file.add("ada", expires=now + datetime.timedelta(days=1))
    assert file.user_for(good) == "ada"
    with pytest.raises(TokenExpired, match=r"^this token of ada expired at \d{4}-\d\d-\d\d \d\d:\d\d; "):
        file.user_for(ended)
    assert file.user_for(f"{ended[:-1]}{'0' if ended[-1] != '0' else '1'}") is None


async def test_use_is_written_at_once_and_then_seldom(tmp_path: Path) -> None:
    """What comes soon after a write waits for the next one, or for the end; removed tokens are forgotten."""
    path, known = tmp_path / "tokens.json", {"aaaa", "bbbb", "cccc"}

    (tmp_path / "tokens_used.json").write_text('{"used": [1]}')
    assert read_token_use(path) == {}  # what cannot be read is taken for empty
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


async def test_the_gateway_records_the_use_of_right_tokens(stack: Stack) -> None:
    """Without writing to the file of tokens; at its end it writes what is left."""
    path = stack.directory / "tokens.json"
    file = TokenFile(path)
    file.add("unused")
    token = file.add("used")
    try:
        before = path.stat()
        assert (await Client(stack.gateway_url, token).request("GET", "/api/kernels")).status == 200
        after = path.stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
        stack.gateway.stop()
        listed = json.loads(command(path, "list", "--json").stdout)
        assert {entry["user"] for entry in listed if entry["last_used"]} & {"used", "unused"} == {"used"}
    finally:
        file.remove("used", "unused")
