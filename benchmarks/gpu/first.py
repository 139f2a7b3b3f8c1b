"""Run everything that a first card should show, the most valuable first, within some minutes, and write one report.

    python benchmarks/gpu/first.py --minutes 9 --out benchmarks/gpu/results

Each step runs in a process of its own under a time limit. A step that fails, crashes or takes too long is reported, and
the next one starts; one that crashed is run once more at the end, with synchronous launches and a stack trace, if there
is time. The report is written again after every step, so that an interrupted run leaves one: `first.json` for programs
and `first.md` for people, beside the steps' own results and logs.

Exit codes: 0 all steps passed, 1 some did not or had no time, 2 there is no GPU to try.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.discovery import check_torch, named_device
from sharedkernel.selftest.runner import Identity, TrustFile
from sharedkernel.selftest.steps import STEPS
from sharedkernel.system.nvml import Gpu
from sharedkernel.system.processes import adopt_orphans
from sharedkernel.units import format_bytes

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent

#: how much longer steps may take on the software GPU, which computes on the processor
_SOFTWARE_PATIENCE = 4.0
#: seconds that what a step has left running may take to end, by itself and then by SIGKILL
_END_PATIENCE = 10.0
#: seconds until its memory on the card is free again, and bytes that others may have taken meanwhile
_FREE_PATIENCE, _OTHERS_BYTES = 20.0, 64 << 20
#: a step is not started with less time left than this, seconds
LEAST_SECONDS = 5.0
#: a step's log is cut off after this many bytes
MOST_LOG_BYTES = 8 << 20
#: lines of its log that the report shows of a step that did not pass
NUM_LOG_LINES = 12

#: one kernel, and a figure that no default value has by chance; the first import takes the longest
_ONE_KERNEL = """
import time
begun = time.monotonic()
import torch
imported = time.monotonic()
x = torch.arange(1000, device="cuda", dtype=torch.float64)
total = (x * x).sum().item()
assert total == 332833500.0, total
print(f"import {imported - begun:.1f} s, first kernel {time.monotonic() - imported:.1f} s, torch {torch.__version__}")
"""
_MACHINE = "nvidia-smi; free -g; ulimit -a; df -h /dev/shm /tmp; uname -a; nproc"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to try.

    Parameters
    ----------
    name
        Of its log and its result file.
    shows
        What it shows, in a few words.
    command
        Its arguments; `{json}` stands for the path of its result file.
    limit
        Seconds after which it is ended.
    needs
        Seconds with less of which it is not begun.
    module
        A Python module that it cannot do without.
    """

    name: str
    shows: str
    command: Sequence[str]
    limit: float
    needs: float = LEAST_SECONDS
    module: str | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a step."""

    name: str
    shows: str
    #: passed, failed, crashed, timed out, or skipped
    status: str = "skipped"
    #: why it was skipped, or its exit code or signal
    note: str = ""
    seconds: float = 0.0
    #: what it measured: rows as of `sharedkernel bench --json`, or facts
    results: Any = None
    #: what it did not measure, and why
    skipped: dict[str, str] = field(default_factory=dict)
    #: how the sessions of its stacks had their memory
    stacks: list[dict[str, Any]] = field(default_factory=list)
    #: the last lines of its log, if it did not pass
    log: list[str] = field(default_factory=list)


def steps(device: str, trust: Path, *, software: bool = False) -> list[Step]:
    """Return all steps, the most valuable first.

    Parameters
    ----------
    device
        The card.
    trust
        Has what passes of the self-test, which is not repeated then.
    software
        Whether it is the software GPU.
    """
    patience = _SOFTWARE_PATIENCE if software else 1.0
    python = [sys.executable, "-X", "faulthandler"]
    on_device = ["--device", device, "--quick", "--trust", str(trust), *(["--software"] if software else [])]

    # the seconds that each needs are those that it took on an H100, or are guessed where none has tried it
    def script(name: str, needs: float, limit: float, shows: str, *arguments: str, result: str = "") -> Step:
        command = [*python, str(SCRIPTS / f"{name}.py"), "--json", "{json}", *on_device, *arguments]
        return Step(result or name, shows, command, limit * patience, needs)

    def tests(name: str, needs: float, limit: float, shows: str, *arguments: str) -> Step:
        command = [*python, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:benchmark", *arguments]
        return Step(name, shows, command, limit * patience, needs, module="pytest")

    ordinal = device.partition(":")[2] or "0"
    probe = [*python, str(SCRIPTS / "probe.py"), "--json", "{json}", "--device", ordinal]
    if software:
        probe += ["--lane", "64"]
    self_test = [sys.executable, "-m", "sharedkernel", "executor", "--device", device, "--self-test"]
    self_test += ["--trust", str(trust)]
    lane_tests = "tests/gpu/test_lanes.py"
    return [
        Step("machine", "the machine, its memory and its limits", ["sh", "-c", _MACHINE], 20.0),
        Step("kernel", "torch computes on the card", [*python, "-c", _ONE_KERNEL], 180.0),
        Step("self-test", "what every executor tries at its start", self_test, 120.0 * patience),
        Step("probe", "the driver's rules that lanes rely on", probe, 90.0 * patience),
        tests("lane_tests", 60.0, 120.0, "the tests of lanes", lane_tests),
        script("switch", 35.0, 120.0, "how long the card stands still at a hand-over"),
        script("soak", 45.0, 180.0, "two trainings in one lane, then kill -9"),
        script("short_cells", 50.0, 120.0, "short cells beside a training"),
        script("trainings", 120.0, 300.0, "two and four trainings, shared and side by side"),
        script("alone", 45.0, 240.0, "one session alone beside a stock kernel"),
        script("libraries", 60.0, 180.0, "autocast, compile, a captured graph, generate"),
        script("inference", 110.0, 240.0, "42 inference sessions"),
        script("oversubscription", 80.0, 180.0, "two jobs that together exceed the card"),
        script("offload", 15.0, 120.0, "memory moved off the card and back"),
        script("faults", 20.0, 120.0, "an illegal access beside a training"),
        script("memory", 100.0, 180.0, "memory of several copies of a training"),
        script("idle", 40.0, 120.0, "what an idle notebook costs"),
        script("soak", 45.0, 180.0, "two trainings with threads", "--threads", "2", result="soak_threads"),
        tests("tests", 120.0, 240.0, "the other tests that need a GPU", "tests/gpu", f"--ignore={lane_tests}"),
    ]


class First:
    """One run of all steps.

    Parameters
    ----------
    out
        Directory for the report, results and logs.
    until
        When it is to be over, by the monotonic clock.
    facts
        What the report says first.
    used_bytes
        Returns the card's memory in use.
    """

    def __init__(self, out: Path, until: float, facts: dict[str, Any], used_bytes: Callable[[], int]) -> None:
        self.out = out
        self.until = until
        self.outcomes: list[Outcome] = []
        self._facts = facts
        self._used_bytes = used_bytes
        adopt_orphans()  # a step's services are in sessions of their own, and outlive who started them

    def run(self, chosen: Sequence[Step]) -> int:
        """Run the *chosen* steps; return the exit code."""
        crashed: list[Step] = []
        for step in chosen:
            outcome = self._run(step)
            if outcome.status == "crashed":
                crashed.append(step)
        for step in crashed:
            self._run(
                Step(f"{step.name}_again", f"{step.shows}, with synchronous launches", step.command, step.limit),
                {"CUDA_LAUNCH_BLOCKING": "1"},
            )
        return 0 if all(outcome.status == "passed" for outcome in self.outcomes) else 1

    def _run(self, step: Step, environment: dict[str, str] | None = None) -> Outcome:
        outcome = Outcome(name=step.name, shows=step.shows)
        self.outcomes.append(outcome)
        left = self.until - time.monotonic()
        if left < step.needs:
            outcome.note = f"it needs {step.needs:.0f} s, and {max(0.0, left):.0f} were left"
        elif step.module is not None and importlib.util.find_spec(step.module) is None:
            outcome.note = f"{step.module} is not installed"
        else:
            self._say(f"{step.name}: {step.shows}")
            self._try(step, outcome, min(step.limit, left), environment or {})
            self._say(f"{step.name}: {outcome.status} after {outcome.seconds:.1f} s {outcome.note}".rstrip())
        self._write()
        return outcome

    def _try(self, step: Step, outcome: Outcome, limit: float, environment: dict[str, str]) -> None:
        result, log = self.out / f"{step.name}.json", self.out / f"{step.name}.log"
        result.unlink(missing_ok=True)
        command = [part.format(json=result) if part == "{json}" else part for part in step.command]
        temporary = Path(tempfile.mkdtemp(prefix="kit-"))  # short: sockets are in it
        environment = {**os.environ, **environment, "PYTHONPATH": _python_path(), "TMPDIR": str(temporary)}
        others, used = _descendants(), self._used_bytes()
        begun = time.monotonic()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = self._wait(process, log, begun + limit)
        outcome.seconds = round(time.monotonic() - begun, 1)
        if code is None:
            outcome.status, outcome.note = "timed out", f"its limit was {limit:.0f} s"
        elif code < 0:
            outcome.status, outcome.note = "crashed", signal.Signals(-code).name
        else:
            outcome.status = "passed" if code == 0 else "failed"
            outcome.note = "" if code == 0 else f"exit code {code}"
        with contextlib.suppress(OSError, ValueError):
            document = json.loads(result.read_text())
            outcome.results = document.get("results", document.get("facts"))
            outcome.skipped = document.get("skipped", {})
            outcome.stacks = document.get("stacks", [])
        if outcome.status != "passed":
            outcome.log = _last_lines(log)
            _keep_logs(temporary, self.out / f"{step.name}.logs")
        self._write()  # the time may be over before all is ended
        notes = [outcome.note, _end_all(others), self._wait_for_memory(used)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # who ended it was not this object
        outcome.note = "; ".join(filter(None, notes))
        shutil.rmtree(temporary, ignore_errors=True)

    def _wait_for_memory(self, before: int) -> str:
        """Wait until the card has the memory back that a step used; return what is missing, if it has not."""
        until = time.monotonic() + _FREE_PATIENCE
        while (missing := self._used_bytes() - before - _OTHERS_BYTES) > 0 and time.monotonic() < until:
            time.sleep(0.1)
        return f"{format_bytes(missing)} of the card's memory did not come back" if missing > 0 else ""

    @staticmethod
    def _wait(process: subprocess.Popen[bytes], log: Path, until: float) -> int | None:
        """Return the exit code of *process*; None if it had to be ended."""
        try:
            while process.poll() is None:
                if time.monotonic() > until or log.stat().st_size > MOST_LOG_BYTES:
                    return None
                time.sleep(0.1)
            return process.returncode
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    # --- the report -----------------------------------

    def _write(self) -> None:
        document = {**self._facts, "steps": [asdict(outcome) for outcome in self.outcomes]}
        (self.out / "first.json").write_text(json.dumps(document, indent=2) + "\n")
        (self.out / "first.md").write_text(_markdown(self._facts, self.outcomes))

    @staticmethod
    def _say(what: str) -> None:
        sys.stderr.write(f"{what}\n")


def _markdown(facts: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    lines = [f"# {facts['device']}, {facts['date']}", ""]
    if facts["software"]:
        lines += ["**The software GPU of the tests, not a card:** its times say nothing.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if name not in ("device", "date", "software")]
    lines += [f"- {note}" for note in _modes(outcomes)]
    lines += ["", "| step | shows | outcome | seconds |", "| --- | --- | --- | ---: |"]
    for outcome in outcomes:
        status = f"{outcome.status} ({outcome.note})" if outcome.note else outcome.status
        lines.append(f"| `{outcome.name}` | {outcome.shows} | {status} | {outcome.seconds:g} |")
    for outcome in outcomes:
        if outcome.results or outcome.skipped or outcome.log:
            lines += ["", f"## {outcome.name}"]
        figures = _figures(outcome.results) + [f"- {name}: skipped: {why}" for name, why in outcome.skipped.items()]
        if figures:
            lines += ["", *figures]
        if outcome.log:
            lines += ["", "```", *outcome.log, "```"]
    return "\n".join(lines) + "\n"


def _modes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return in which modes figures were measured, and which steps used no lanes."""
    stacks = [(outcome.name, stack) for outcome in outcomes for stack in outcome.stacks]
    lines = []
    for name, what in (("memory_mode", "memory modes"), ("self_test", "self-test"), ("nvml", "NVML")):
        if values := sorted({stack[name] for _, stack in stacks if name in stack}):
            lines.append(f"{what}: {', '.join(values)}")
    for step, stack in stacks:
        lines += [f"no lane in `{step}`: {user}: {note}" for user, note in stack["lane_notes"].items()]
    return list(dict.fromkeys(lines))


def _figures(results: Any) -> list[str]:
    if isinstance(results, dict):
        return [f"- {'yes' if fact else '**no**'}: {name}" for name, fact in results.items()]
    if not isinstance(results, list):
        return []
    return [
        f"- {row['metric']}: {row['value']:.4g} {row['unit']} (target {row['target']}"
        f"{'' if row['met'] else ', **missed**'}). {row['how']}"
        for row in results
    ]


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _end_all(others: set[psutil.Process]) -> str:
    """End all that a step has left, wherever it went, except *others*; return what could not be ended.

    Services end at their starter's end, and take their sessions with them: they are given some seconds for that.
    """
    until = time.monotonic() + _END_PATIENCE
    while left := _descendants() - others:
        psutil.wait_procs(left, timeout=0.2)
        if time.monotonic() > until + _END_PATIENCE:
            return f"{len(left)} of its processes cannot be ended"
        if time.monotonic() > until:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
    return ""


def _keep_logs(directory: Path, kept: Path) -> None:
    """Copy the logs of stacks that could not remove them any more."""
    for log in directory.rglob("*.log"):
        with contextlib.suppress(OSError):
            kept.mkdir(exist_ok=True)
            shutil.copyfile(log, kept / log.name)


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        return file.read().decode(errors="replace").splitlines()[-NUM_LOG_LINES:]


def _force_shared(gpu: Gpu, trust: Path) -> None:
    """Note all steps of the self-test as passed."""
    facts = gpu.facts
    identity = Identity(driver=facts.driver_version, torch=check_torch(), card=facts.name, uuid=facts.uuid)
    TrustFile(trust).record(identity, [step.name for step in STEPS])


def _facts(gpu: Gpu, *, commit: str, is_software: bool) -> dict[str, Any]:
    return {
        "device": gpu.facts.name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "software": is_software,
        "driver": gpu.facts.driver_version,
        "torch": _version("torch"),
        "cuda-bindings": _version("cuda-bindings"),
        "python": platform.python_version(),
        "commit": commit,
    }


def _used_bytes(gpu: Gpu) -> int:
    with contextlib.suppress(SharedKernelError):
        return gpu.sample().used_bytes
    return 0  # the steps say what is wrong with it


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return "unknown"


def _python_path() -> str:
    """Return the search path for steps: the warm parent runs elsewhere, and the checkout may not be installed."""
    return os.pathsep.join([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def main() -> int:
    """Run the steps and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="for how long at most (default: %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="the GPU (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=SCRIPTS / "results", help="directory for report, results and logs")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="run these steps only, in this order")
    parser.add_argument("--commit", help="of the source, where git does not know it")
    parser.add_argument(
        "--force-shared", action="store_true", help="share lanes although the self-test failed, to see what else does"
    )
    parser.add_argument("--software", action="store_true", help="the device is the software GPU of the tests")
    options = parser.parse_args()
    until = time.monotonic() + 60.0 * options.minutes
    trust = options.out.resolve() / "trust.json"
    chosen = steps(options.device, trust, software=options.software)
    if options.only:
        unknown = set(options.only) - {step.name for step in chosen}
        if unknown:
            parser.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in chosen)}.")
        chosen = [step for name in options.only for step in chosen if step.name == name]
    try:
        check_torch()
        gpu = Gpu(named_device(options.device, os.environ))
        options.out.mkdir(parents=True, exist_ok=True)
        if options.force_shared:
            _force_shared(gpu, trust)
        facts = _facts(gpu, commit=options.commit or _commit(), is_software=options.software)
        first = First(options.out.resolve(), until, facts, lambda: _used_bytes(gpu))
    except (SharedKernelError, OSError) as error:
        sys.stderr.write(f"first: {error}\n")
        return 2
    return first.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
