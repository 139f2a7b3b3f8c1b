"""The MPS control daemon, played by a program of its name that is on the path."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.executor.devices.cuda.mps import COMMAND, FAULTS, Mps, MpsMode

UUID = "GPU-5ad1f0c2-0000-4000-8000-000000000001"
GIB = 1 << 30

#: as the real one: commands come on standard input and need a daemon; `-d` starts one, unless one is there
PROGRAM = """
    import os, pathlib, sys
    pipe, log = (pathlib.Path(os.environ[f"CUDA_MPS_{name}_DIRECTORY"]) for name in ("PIPE", "LOG"))
    daemon = pipe / "control"
    with (log / "calls").open("a") as calls:
        text = "" if "-d" in sys.argv else sys.stdin.read()
        print(sys.argv[1:], repr(text), os.environ["CUDA_VISIBLE_DEVICES"], file=calls)
    if "-d" in sys.argv:
        if (log / "broken").exists() or daemon.exists():
            sys.exit("An instance of this daemon is already running")
        daemon.touch()
    elif not daemon.exists():
        sys.exit("Cannot find MPS control daemon process")
    elif text == "quit\\n":
        daemon.unlink()
    elif text != "get_server_list\\n":
        sys.exit(f"Unknown command: {text}")
"""


@pytest.fixture
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a runtime directory, with the program on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / COMMAND
    program.write_text(f"#!{sys.executable} -SE\n{dedent(PROGRAM)}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    return directory


def calls(runtime_directory: Path) -> list[str]:
    return (runtime_directory / "mps" / "log" / "calls").read_text().splitlines()


def break_daemon(runtime_directory: Path) -> None:
    log = runtime_directory / "mps" / "log"
    for directory in (log.parent, log, log.parent / "pipe"):
        directory.mkdir(mode=0o700)
    (log / "broken").touch()


async def test_off_starts_nothing(runtime_directory: Path) -> None:
    """Sessions get no variables then, and nothing is made."""
    mps = Mps(MpsMode.OFF, UUID)
    await mps.start(runtime_directory)
    assert not mps.is_on
    assert mps.environment(GIB, 0.5) == {}
    assert os.listdir(runtime_directory) == []


@pytest.mark.parametrize("mode", [MpsMode.AUTO, MpsMode.REQUIRE])
async def test_a_daemon_is_started_for_one_gpu_in_private_directories(runtime_directory: Path, mode: MpsMode) -> None:
    """It is asked whether it answers before and after, and status says what it costs.

    A client is bound to its quota in whole MiB, with room for the context, and to its percentage of the processors,
    where lanes run side by side.
    """
    mps = Mps(mode, UUID)
    await mps.start(runtime_directory)
    assert mps.is_on
    assert mps.note == FAULTS
    for directory in ("mps", "mps/pipe", "mps/log"):
        assert stat.S_IMODE((runtime_directory / directory).stat().st_mode) == 0o700
    assert calls(runtime_directory) == [
        f"[] 'get_server_list\\n' {UUID}", f"['-d'] '' {UUID}", f"[] 'get_server_list\\n' {UUID}",
    ]  # fmt: skip
    variables = mps.environment(4 * GIB + 1, None)
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == str(runtime_directory / "mps" / "pipe")
    assert variables["CUDA_MPS_LOG_DIRECTORY"] == str(runtime_directory / "mps" / "log")
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=5121M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in variables
    percentages = [mps.environment(GIB, part)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for part in (0.5, 0.001, 3.0)]
    assert percentages == ["50", "10", "100"]


async def test_it_quits_with_its_sessions_and_stays_with_those_that_run_on(runtime_directory: Path) -> None:
    """Sessions that run on are its clients; the next executor finds it and starts no other."""
    first, second = Mps(MpsMode.REQUIRE, UUID), Mps(MpsMode.REQUIRE, UUID)
    await first.start(runtime_directory)
    await first.stop(end_sessions=False)
    await second.start(runtime_directory)
    await second.stop(end_sessions=True)
    assert not second.is_on
    assert [line.split("'")[1] for line in calls(runtime_directory)] == [
        "get_server_list\\n", "-d", "get_server_list\\n", "get_server_list\\n", "quit\\n",
    ]  # fmt: skip
    assert not (runtime_directory / "mps" / "pipe" / "control").exists()


async def test_a_daemon_that_does_not_start_is_done_without_or_refused(runtime_directory: Path) -> None:
    """`auto` goes on and status says why; `require` does not go on."""
    break_daemon(runtime_directory)
    mps = Mps(MpsMode.AUTO, UUID)
    await mps.start(runtime_directory)
    assert not mps.is_on
    assert "already running" in mps.note
    assert mps.environment(GIB, None) == {}
    with pytest.raises(ConfigError, match=r"--mps require cannot be met: .*already running"):
        await Mps(MpsMode.REQUIRE, UUID).start(runtime_directory)


async def test_without_the_program_it_says_where_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's packages bring it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="is not installed here"):
        await Mps(MpsMode.REQUIRE, UUID).start(tmp_path)
