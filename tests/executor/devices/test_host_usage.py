"""What the system says that a session has with all that it started, and what an account leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sharedkernel.executor.devices.host import host_usage, remove_shared_memory

#: bytes that each way has
_SIZE = 64 << 20
#: bytes that an interpreter may have besides
_INTERPRETER = 24 << 20

_PRELUDE = """if True:
    import ctypes, mmap, os, subprocess, sys, time
    libc = ctypes.CDLL(None)
    def memory_file():
        file = os.memfd_create("held")
        os.truncate(file, SIZE)
        for place in range(0, SIZE, 4096):
            os.pwrite(file, b"x", place)
        return file
    def touch(mapping):
        for place in range(0, SIZE, 4096):
            mapping[place] = 1
        return mapping
"""
WAYS = {
    "in a private mapping": "held = touch(mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))",
    "in a shared mapping": "held = touch(mmap.mmap(-1, SIZE))",
    "in a memory file that is only mapped": "file = memory_file(); held = touch(mmap.mmap(file, SIZE)); os.close(file)",
    "in System V shared memory": """
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(0, ctypes.c_size_t(SIZE), 0o600)
    ctypes.memset(libc.shmat(segment, None, 0), 1, SIZE)
    libc.shmctl(segment, 0, None)
""",
    "in a grandchild in a session of its own": """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            held = b'x' * SIZE
            time.sleep(600)
        time.sleep(600)
""",
    "in a parent and its forked workers": """
    held = b'x' * SIZE
    for _ in range(4):
        if os.fork() == 0:
            time.sleep(600)
""",
    "in a tensor's file that a parent and its workers have mapped": """
    held = touch(mmap.mmap(memory_file(), SIZE))
    for _ in range(4):
        if os.fork() == 0:
            touch(held)
            time.sleep(600)
""",
}


@contextmanager
def _holder(way: str) -> Iterator[int]:
    """Yield the process id of a program that has memory in a *way*; it and all that it starts end afterwards."""
    code = f"SIZE = {_SIZE}\n{_PRELUDE}\n    {WAYS[way].lstrip()}\n    print(flush=True)\n    time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"\n"
            yield program.pid
        finally:
            for child in psutil.Process(program.pid).children(recursive=True):
                child.kill()
            program.kill()


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_seen_once_however_it_is_had(way: str) -> None:
    """Neither is any of it missed nor does any count twice, in whatever process."""
    with _holder(way) as pid:
        deadline = 200
        while (found := host_usage([([pid], 0)])[pid]) < _SIZE and deadline:  # a child may still be filling it
            deadline -= 1
        assert _SIZE <= found < _SIZE + 3 * _INTERPRETER, found
        assert host_usage([([pid], 1 << 50)]) == {}, "who has little for certain is not looked at"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start programs under other accounts")
def test_what_an_account_leaves_in_shared_memory_is_removed() -> None:
    """Files, and System V segments that nobody has attached; those of others stay."""
    uid = 231990
    leave = f"""if True:
        import ctypes, os
        libc = ctypes.CDLL(None)
        os.setuid({uid})  # not before: an interpreter may lie where only root can read it
        print(libc.shmget(0, ctypes.c_size_t({_SIZE}), 0o600))
        os.mkdir("/dev/shm/sk-left-{uid}")
        open("/dev/shm/sk-left-{uid}/file", "wb").write(b"left")
    """
    leaver = [sys.executable, "-S", "-c", leave]
    file = Path(f"/dev/shm/sk-left-{uid}/file")
    try:
        segment = int(subprocess.run(leaver, check=True, capture_output=True).stdout)
        remove_shared_memory(uid + 1)
        assert file.exists()
        assert segment in _segments()
        remove_shared_memory(uid)
        assert not file.exists()
        assert segment not in _segments()
    finally:
        remove_shared_memory(uid)
        file.parent.rmdir()


def _segments() -> set[int]:
    return {int(line.split()[1]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
