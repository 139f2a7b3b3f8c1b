"""The command ``files``: what goes up and comes down, what is asked before, and what is said when it cannot be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sharedkernel.client.gateway.files import PART_SUFFIX
from tests.cli.support import COMMAND
from tests.command import run_here
from tests.executor.isolation import ADA
from tests.files import FileStack
from tests.gateway.client import PATIENCE
from tests.gateway.conftest import wait_for
from tests.small_disk import fill, mounted

_MIB = 1 << 20


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileStack]:
    """Yield one in which ada's home is there, whichever test is the first."""
    with FileStack(config="c.SharedKernelGateway.terminals = False") as found:
        run(found, tmp_path_factory.getbasetemp(), "ls")
        yield found


def start(stack: FileStack, folder: Path, *line: str) -> subprocess.Popen[bytes]:
    """Start the command in *folder*."""
    return subprocess.Popen(
        [*COMMAND, "files", *line],
        env=os.environ | stack.client_environment(ADA),
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )


def run(stack: FileStack, folder: Path, *line: str, code: int = 0, word: str = "") -> str:
    """Run the command in *folder*; it ends with *code*, and says *word* if it fails."""
    with contextlib.chdir(folder):
        done = run_here("files", *line, **stack.client_environment(ADA))
    assert (done.returncode, word in done.stderr) == (code, True), done
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.heavy
def test_a_folder_goes_there_and_back(stack: FileStack, tmp_path: Path) -> None:
    """With what is in it, whatever that is called; what a name has of a terminal's commands is written out."""
    names = {"a.bin": os.urandom(3 * _MIB), "sub/\x1b[31mred": b"x", "sub/empty": b"", "sub/" + "n" * 255: b"long"}
    for name, content in names.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(content)
    run(stack, tmp_path, "put", "data", code=1, word="-r uploads it")
    run(stack, tmp_path, "put", "data", "-r")
    listed = run(stack, tmp_path, "ls", "data/sub")
    assert r"\x1b[31mred" in listed
    assert "\x1b" not in listed
    assert {entry["name"] for entry in json.loads(run(stack, tmp_path, "ls", "--json", "127.0.0.1:data"))} >= {"a.bin"}
    run(stack, tmp_path, "get", "data", "back", "-r")
    for name, content in names.items():
        assert (tmp_path / "back" / name).read_bytes() == content
    run(stack, tmp_path, "rm", "data", code=1, word="-r removes it")
    run(stack, tmp_path, "rm", "-r", "data")
    run(stack, tmp_path, "ls", "data", code=1, word="there is no file data there")


@pytest.mark.heavy
def test_nothing_is_replaced_unasked(stack: FileStack, tmp_path: Path) -> None:
    """On either side."""
    (tmp_path / "one").write_text("first")
    run(stack, tmp_path, "put", "one")
    (tmp_path / "one").write_text("second")
    run(stack, tmp_path, "put", "one", code=1, word="--force replaces it")
    assert (stack.home() / "one").read_text() == "first"
    run(stack, tmp_path, "get", "one", code=1, word="--force replaces it")
    run(stack, tmp_path, "put", "one", "--force")
    assert (stack.home() / "one").read_text() == "second"


@pytest.mark.heavy
def test_what_was_cut_goes_on(stack: FileStack, tmp_path: Path) -> None:
    """Up and down: the part that has come stays, is not listed, and is not sent again."""
    content = os.urandom(96 * _MIB)
    (tmp_path / "large").write_bytes(content)
    name = f".large{PART_SUFFIX}"
    for line, part in (
        (("put", "large"), stack.home() / name),
        (("get", "large", "back"), tmp_path / f".back{PART_SUFFIX}"),
    ):
        process = start(stack, tmp_path, *line)
        wait_for(lambda part=part: part.exists() and part.stat().st_size > _MIB)
        process.kill()
        process.wait()
        size = part.stat().st_size
        assert size < len(content), "it was not cut"
        assert name not in run(stack, tmp_path, "ls")
        inode = part.stat().st_ino
        run(stack, tmp_path, *line)
        assert not part.exists()
        target = stack.home() / "large" if line[0] == "put" else tmp_path / "back"
        assert target.read_bytes() == content
        assert target.stat().st_ino == inode


@pytest.mark.heavy
def test_a_file_that_changed_meanwhile_is_not_taken(stack: FileStack, tmp_path: Path) -> None:
    """The checksum of the whole shows that the part is of another file."""
    (tmp_path / "data").write_bytes(b"new" * 100)
    (stack.home() / f".data{PART_SUFFIX}").write_bytes(b"old" * 50)
    run(stack, tmp_path, "put", "data", code=1, word="upload it again")
    assert not (stack.home() / "data").exists()
    run(stack, tmp_path, "put", "data")
    (tmp_path / f".back{PART_SUFFIX}").write_bytes(b"old" * 50)
    run(stack, tmp_path, "get", "data", "back", code=1, word="download it again")
    run(stack, tmp_path, "get", "data", "back")
    assert (tmp_path / "back").read_bytes() == b"new" * 100


@pytest.mark.heavy
def test_one_download_of_a_file_at_a_time(stack: FileStack, tmp_path: Path) -> None:
    """Two would write to one file, also once that has been found right and put in its place."""
    content = os.urandom(96 * _MIB)
    stack.home().joinpath("twice").write_bytes(content)
    part = tmp_path / f".twice{PART_SUFFIX}"
    with start(stack, tmp_path, "get", "twice") as first:
        wait_for(lambda: part.exists() and part.stat().st_size > _MIB)
        first.send_signal(signal.SIGSTOP)
        try:
            run(stack, tmp_path, "get", "twice", code=1, word="twice is being downloaded already")
        finally:
            first.send_signal(signal.SIGCONT)
    assert first.returncode == 0
    assert (tmp_path / "twice").read_bytes() == content
    assert not part.exists()


@pytest.mark.heavy
def test_a_full_disk_is_said(stack: FileStack, tmp_path: Path) -> None:
    """Before anything is sent, and where it fills up meanwhile; nothing half is left, and what is there can go."""
    (tmp_path / "large").write_bytes(bytes(8 * _MIB))
    (stack.home() / "small").mkdir(exist_ok=True)
    with mounted(stack.home() / "small") as disk:
        run(stack, tmp_path, "put", "large", "small/large", code=1, word="the disk there is full")
        (tmp_path / "some").write_bytes(os.urandom(3 * _MIB))
        run(stack, tmp_path, "put", "some", "small/some")
        filling = fill(disk)
        run(stack, tmp_path, "put", "some", "small/other", code=1, word="the disk there is full")
        assert {path.name for path in disk.iterdir()} == {"some", filling.name}
        run(stack, tmp_path, "rm", "small/some")


@pytest.mark.heavy
def test_what_cannot_be_is_one_sentence(stack: FileStack, tmp_path: Path) -> None:
    """Whatever is missing: the file, the word, the permission, the token."""
    run(stack, tmp_path, "get", "missing", code=1, word="there is no file missing there")
    run(stack, tmp_path, "put", "missing", code=1, word="No such file")
    run(stack, tmp_path, "put", code=2, word="name what to do")
    run(stack, tmp_path, "move", "x", code=2, word="name what to do")
    run(stack, tmp_path, "ls", "../x", code=1, word="outside of your home")
    run(stack, tmp_path, "ls", "--token", "wrong", code=1, word="does not accept this token")


def resident(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


@pytest.mark.heavy
def test_memory_is_bounded(stack: FileStack, tmp_path: Path) -> None:
    """Of the gateway and of the user's server, while 300 MB go up and come down."""
    with (tmp_path / "huge").open("wb") as file:
        for _ in range(300):
            file.write(os.urandom(_MIB))
    run(stack, tmp_path, "ls")
    assert stack.gateway.process is not None
    pids = [stack.gateway.process.pid, *(process.pid for process in stack.servers())]
    assert len(pids) == 2
    before, most = [resident(pid) for pid in pids], [0, 0]
    for line in (("put", "huge"), ("get", "huge", "back")):
        process = start(stack, tmp_path, *line)
        while process.poll() is None:
            most = [max(pair) for pair in zip(most, map(resident, pids), strict=True)]
            time.sleep(0.02)
        assert process.returncode == 0
    assert all(now - then < 50 * _MIB for then, now in zip(before, most, strict=True)), (before, most)


def test_a_server_that_hangs_is_given_up_by_its_client(stack: FileStack, tmp_path: Path) -> None:
    """The gateway serves others meanwhile, and the request goes on once the server does."""
    run(stack, tmp_path, "ls")
    (server,) = stack.servers()
    server.send_signal(signal.SIGSTOP)
    process = start(stack, tmp_path, "ls")
    try:
        assert stack.status().users is not None
        assert process.poll() is None
    finally:
        server.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE) == 0
