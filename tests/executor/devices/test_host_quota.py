"""Whatever a notebook and its children have written to on the host device gets a user no more than their quota."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sharedkernel.executor.devices.host import host_usage
from sharedkernel.executor.processes.user_quota import HOST_CONTEXT_BYTES
from sharedkernel.protocol import Limits
from tests.executor.harness import until
from tests.executor.isolation import ApartExecutor, Executor, needs_root

pytestmark = [needs_root, pytest.mark.heavy]

_QUOTA = 192 << 20
#: what each way takes: clearly more than a quota and a session's own memory
_SIZE = _QUOTA + HOST_CONTEXT_BYTES + (128 << 20)

_PRELUDE = """if True:
    import mmap, sys, time
    from resource import *
    def insist(take):  # the executor may have set the limit again between the two
        while True:
            setrlimit(RLIMIT_DATA, (getrlimit(RLIMIT_DATA)[1],) * 2)
            try:
                return take()
            except (OSError, MemoryError, RuntimeError):
                time.sleep(0.1)
    def fill(mapping):
        for place in range(0, SIZE, 4096):
            mapping[place] = 1
        return mapping
"""
_WAYS = {
    "private mappings": "held = insist(lambda: fill(mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)))",
    "a lying meter": """
    import sharedkernel.session.memory.host_meter as meter
    nothing = meter._MallInfo()
    meter._mallinfo2 = meter._mallinfo2_unlocked = lambda: nothing
    meter.HostMeter.allow = lambda *_: None
    import torch
    held = insist(lambda: torch.ones(SIZE // 4))
""",
    "shared mappings": "held = fill(mmap.mmap(-1, SIZE))",
    "children": """
    import subprocess
    code = f"import time; held = [b'x' * ({SIZE} // 4)]; time.sleep(600)"
    held = [subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True) for _ in range(4)]
""",
}

_LEAVE = """
import os, pathlib
path = pathlib.Path(f"/dev/shm/sk-test-{os.getuid()}")
path.write_bytes(b"left")
print(path, end="")
"""


@pytest.fixture(scope="module")
def impatient() -> Iterator[ApartExecutor]:
    process = ApartExecutor("--overuse-patience", "1s", capacity="2GiB")
    yield process
    process.close()


async def test_every_way_beyond_a_quota_ends(impatient: ApartExecutor) -> None:
    """Each user takes as much as they can in their own way; they are ended, with all that they had, and nobody else."""

    async def takes(number: int, way: str) -> None:
        user = f"sk-test-way{number}"
        greedy = await executor.notebook(user, limits=Limits(user=user, quota_bytes=_QUOTA))
        uid = int((await greedy.run("import os; os.getuid()")).text)
        greedy.client.execute(f"SIZE = {_SIZE}\n{_PRELUDE}\n    {_WAYS[way].lstrip()}")
        await executor.until_ended(greedy, f"{way}: the session is ended")

        async def is_gone() -> bool:
            return await asyncio.to_thread(_held_by, uid) < _QUOTA

        await until(is_gone, f"{way}: nothing is left of it")

    async with Executor(impatient) as executor:
        honest = await executor.notebook("sk-test-honest", limits=Limits(user="sk-test-honest", quota_bytes=_QUOTA))
        assert (await honest.run("import torch; x = torch.ones(40 << 18); x.sum().item()")).status == "ok"
        for number, way in enumerate(_WAYS):
            await takes(number, way)
        assert impatient.log().count(": ended") == len(_WAYS), impatient.log()
        assert (await honest.run("x.sum().item()")).text == f"{float(40 << 18)}"


async def test_what_a_user_leaves_in_shared_memory_goes_with_their_last_process(impatient: ApartExecutor) -> None:
    """It would stay for ever, and count for nobody."""
    async with Executor(impatient) as executor:
        leaver, stayer = await executor.notebook("sk-test-leaver"), await executor.notebook("sk-test-stayer")
        left, kept = [Path((await notebook.run(_LEAVE)).text) for notebook in (leaver, stayer)]
        assert left.exists()
        await executor.client.end_session(leaver.session)
        await until(lambda: not left.exists(), "the file is removed")
        kept.unlink()  # it was there


def _is_of(process: psutil.Process, uid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
        return uid in process.uids()
    return False


def _held_by(uid: int) -> int:
    """Return the bytes that the processes of an account have."""
    own = [process.pid for process in psutil.process_iter() if _is_of(process, uid)]
    return sum(host_usage([(own, 0)]).values())
