"""Programs of sessions as the device's driver lists them: whose they are, and which are never stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.executor.devices.cuda.monitor import find_programs
from sharedkernel.executor.processes.programs import Program
from sharedkernel.system.nvml import GpuSample
from tests.executor.devices.support import make_process

#: starts a program that is in no session or group of its own parent's, and prints its process id
LEADER = """
import subprocess, sys
program = subprocess.Popen([sys.executable, "-u", sys.argv[1], "--epochs", "3"], start_new_session=True)
program.wait()
"""


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Yield the process of a session, and of a program that it started."""
    path = tmp_path / "train.py"
    path.write_text("import os, sys\nprint(os.getpid())\nsys.stdin.read()\n")  # once it runs it has its name
    with subprocess.Popen(
        [sys.executable, "-c", LEADER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as leader:
        assert leader.stdout is not None
        yield leader.pid, int(leader.stdout.readline())


async def look(
    pids: tuple[int, int], *, under_mps: bool = False, elsewhere: frozenset[int] = frozenset(), uid: int | None = None
) -> tuple[Program, dict[int, float]]:
    leader, program = pids
    sample = GpuSample(
        used_bytes=0,
        free_bytes=0,
        utilisation=None,
        temperature_celsius=None,
        power_watts=None,
        power_limit_watts=None,
        processes={leader: 1, program: 5, os.getpid(): 7},
        busy={leader: 0.25, program: 0.5, os.getpid(): 1.0},
        elsewhere=elsewhere,
    )
    process = make_process("p", pid=leader)
    process.uid = os.getuid() if uid is None else uid
    found, used = find_programs([process], sample, under_mps=under_mps)
    (one,) = found["p"]
    return one, used


async def test_a_program_is_its_sessions_wherever_it_went(pids: tuple[int, int]) -> None:
    """Also in a process group and session of its own; processes of nobody's session count for nobody."""
    leader, program = pids
    found, used = await look(pids)
    assert (found.name, found.root, found.pids) == ("train.py", program, (program,))
    assert (found.bytes, found.busy, found.exempt) == (5, 0.5, None)
    assert used == {leader: 0.75}


async def test_programs_that_are_never_stopped_say_why(pids: tuple[int, int]) -> None:
    """They would harm others, or go on elsewhere."""
    program = pids[1]
    for options, why in (
        ({"under_mps": True}, "the device runs under MPS"),
        ({"elsewhere": frozenset({program})}, "it uses two devices"),
        ({"uid": 12345}, "it runs under another account"),
    ):
        found, _ = await look(pids, **options)
        assert found.exempt == why
