"""The executor's side of the self-test, with programs in the place of its process; and that process without a GPU."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.selftest.runner import Identity, SelfTest, TrustFile
from sharedkernel.selftest.steps import STEPS, Outcome, Verdict
from tests.command import run_apart

CARD = Identity(driver="580.65", torch="2.11.0+cu130", card="NVIDIA H200", uuid="GPU-1")
#: passes all steps that it is asked for, but those named in FAILS
PASSES = """
print("loaded", flush=True)
for step in sys.argv[3:]:
    outcome, why = ("failed", "broken") if step in FAILS else ("passed", "")
    print(json.dumps({"step": step, "outcome": outcome, "why": why, "seconds": 0.1}), flush=True)
"""


def program(folder: Path, code: str) -> str:
    """Write a program that stands for Python with the self-test; return its path."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{code}")
    path.chmod(0o700)
    return str(path)


def try_out(folder: Path, code: str, **options: Any) -> Verdict:
    """Run the self-test with such a program."""
    run = {name: options.pop(name) for name in ("own", "trusts_own") if name in options}
    self_test = SelfTest(CARD, python=program(folder, code), **options)
    return asyncio.run(self_test.run(DeviceMemoryMode.SHARED, **run))


def outcomes(verdict: Verdict) -> dict[str, Outcome]:
    return {result.step: result.outcome for result in verdict.results}


def test_only_what_has_not_passed_is_tried_again(tmp_path: Path) -> None:
    """What failed is, at each start, until it passes."""
    trust = tmp_path / "trust.json"
    first = try_out(tmp_path, PASSES.replace("FAILS", "['offload']"), trust=trust)
    assert (first.mode, outcomes(first)["offload"]) == (DeviceMemoryMode.PRIVATE, Outcome.FAILED)
    second = try_out(tmp_path, PASSES.replace("FAILS", "[]"), trust=trust)
    assert second.mode is DeviceMemoryMode.SHARED
    assert [step for step, outcome in outcomes(second).items() if outcome is Outcome.PASSED] == ["offload"]
    assert second.sentence.endswith("steps tried: 1 in 0.1 s, trusted: 12.")


def test_without_a_file_everything_is_tried_each_time(tmp_path: Path) -> None:
    """Nor does the runtime directory's count, unless sessions of the executor before are there."""
    own = tmp_path / "self-test.json"
    code = PASSES.replace("FAILS", "[]")
    for _ in range(2):
        assert set(outcomes(try_out(tmp_path, code, own=own)).values()) == {Outcome.PASSED}
    assert set(outcomes(try_out(tmp_path, code, own=own, trusts_own=True)).values()) == {Outcome.TRUSTED}


def test_steps_that_were_not_tried_now_stay_trusted(tmp_path: Path) -> None:
    """When the driver could not share memory this time."""
    trust = tmp_path / "trust.json"
    TrustFile(trust).record(CARD, [step.name for step in STEPS])
    verdict = asyncio.run(SelfTest(CARD, trust, python="/nonexistent").run(DeviceMemoryMode.PRIVATE))
    assert verdict.mode is DeviceMemoryMode.PRIVATE
    assert outcomes(verdict)["offload"] is Outcome.NOT_RUN
    assert "offload" in TrustFile(trust).passed(CARD)


def test_a_damaged_file_is_told_of_once(tmp_path: Path) -> None:
    """And everything is tried."""
    trust = tmp_path / "trust.json"
    trust.write_text("{")
    verdict = try_out(tmp_path, PASSES.replace("FAILS", "[]"), trust=trust)
    assert verdict.mode is DeviceMemoryMode.SHARED
    assert len(verdict.notes) == 1
    assert trust.read_text() == "{"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.abort()", "the self-test's process was ended by SIGABRT"),
        ("sys.exit(3)", "the self-test's process ended with exit status 3"),
        ("print('no such line')", "the self-test's process wrote what is no result"),
        ("print(json.dumps({'step': 'training'}))", "the self-test's process wrote what is no result"),
    ],
)
def test_when_its_process_ends_what_was_not_tried_did_not_run(tmp_path: Path, code: str, why: str) -> None:
    """The executor serves all the same."""
    verdict = try_out(tmp_path, code)
    assert verdict.mode is DeviceMemoryMode.PLAIN
    assert not verdict.failed
    assert {result.why for result in verdict.left_out} == {why}
    assert len(verdict.left_out) == len(STEPS)
    assert verdict.sentence.startswith(f"the self-test did not run training ({why}), and 12 more; ")


def test_one_that_cannot_be_started_runs_nothing(tmp_path: Path) -> None:
    """Python may have been removed."""
    verdict = asyncio.run(SelfTest(CARD, python="/nonexistent").run(DeviceMemoryMode.SHARED))
    assert verdict.left_out[0].why == "its process did not start: No such file or directory"


@pytest.mark.heavy
def test_one_that_hangs_is_killed_and_what_it_did_counts(tmp_path: Path) -> None:
    """Within the time limit, and no process is left."""
    code = PASSES.replace("sys.argv[3:]", "sys.argv[3:6]").replace("FAILS", "[]")
    code += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)"
    began = time.monotonic()
    verdict = try_out(tmp_path, code, seconds=1.0)
    assert time.monotonic() - began < 20
    assert [result.step for result in verdict.results if result.outcome is Outcome.PASSED] == [
        step.name for step in STEPS[:3]
    ]
    assert not verdict.failed
    assert verdict.left_out[0].why == "the self-test took longer than 1 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.heavy
def test_the_time_limit_counts_from_when_torch_is_loaded(tmp_path: Path) -> None:
    """A cold disk takes none of the steps' time; a limit of its own ends what does not load at all."""
    slow = "time.sleep(1.5)\n" + PASSES.replace("FAILS", "[]")
    assert try_out(tmp_path, slow, seconds=1.0).is_whole
    verdict = try_out(tmp_path, slow, seconds=1.0, load_seconds=0.5)
    assert {result.why for result in verdict.left_out} == {"torch and its libraries were not loaded within 0 s"}


def test_it_gets_none_of_the_executors_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is a warm parent's."""
    monkeypatch.setenv("SHAREDKERNEL_TOKEN", "secret")
    try_out(tmp_path, f"json.dump(dict(os.environ), open({str(tmp_path / 'environment')!r}, 'w'))")
    assert "SHAREDKERNEL_TOKEN" not in json.loads((tmp_path / "environment").read_text())


# --- its process, with other functions in the place of steps ------------------------------------------------------

TRY = """
import os, sys, time
from sharedkernel.selftest import __main__ as process

def fails(): raise RuntimeError("other bytes.\\nand more")
def leaves_children():
    if os.fork() == 0: time.sleep(1000)
def stays(): time.sleep(1000)

process.adopt_orphans()
process.find = lambda name: {"pass": int, "fail": fails, "abort": os.abort, "hang": stays, "exit": lambda: os._exit(0),
                             "leave": leaves_children}[name]
for name in sys.argv[1:]:
    print(process.try_step(name, 1.0) or "passed")
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no process is left")
"""


def test_whatever_a_step_does_is_its_own_failure() -> None:
    """The next one passes, and no process is left."""
    names = ["pass", "fail", "abort", "hang", "exit", "leave", "pass"]
    done = subprocess.run([sys.executable, "-c", TRY, *names], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "passed",
        "other bytes",
        "its process was ended by SIGABRT",
        "it took longer than 1 s",
        "its process ended with exit status 0",
        "passed",
        "passed",
        "no process is left",
    ], done.stderr


def test_the_self_test_is_only_for_gpus() -> None:
    """One sentence, and exit code 2."""
    done = run_apart("executor", "--self-test", "--device", "host")
    assert done.returncode == 2
    assert done.stderr == "sharedkernel: the self-test is about GPUs; name one with --device cuda:0.\n"
