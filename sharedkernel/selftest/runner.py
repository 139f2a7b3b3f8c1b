"""The executor's side of the self-test: starts its process, reads a result for each step, and keeps what passed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.ipc.helper_process import scrubbed_environment
from sharedkernel.selftest.steps import LOAD_SECONDS, TOTAL_SECONDS, Outcome, StepResult, Verdict, judge, steps_up_to
from sharedkernel.selftest.trust import Identity, TrustFile, TrustUnusable

log = logging.getLogger(__name__)

#: the line that the process writes when torch is loaded; the steps' results follow
LOADED = b"loaded\n"
#: seconds that the process has to end once it was killed: one that hangs in the driver may never
_KILL_SECONDS = 5.0


class SelfTest:
    """Tries one card, or trusts what was tried before.

    Parameters
    ----------
    identity
        Of the card and the software that are tried.
    trust
        Results that count from run to run; None: everything is tried each time.
    python
        The interpreter of the processes.
    seconds
        That all steps may take once the libraries are loaded.
    load_seconds
        That these may take to load.
    """

    def __init__(
        self,
        identity: Identity,
        trust: Path | None = None,
        *,
        python: str = sys.executable,
        seconds: float = TOTAL_SECONDS,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self._identity = identity
        self._trust = None if trust is None else TrustFile(trust)
        self._python = python
        self._seconds = seconds
        self._load_seconds = load_seconds

    async def run(
        self, best: DeviceMemoryMode, *, why_not_better: str = "", own: Path | None = None, trusts_own: bool = False
    ) -> Verdict:
        """Try what *best* and all plainer modes need.

        It takes :data:`~.steps.TOTAL_SECONDS` at most, once torch is loaded; what has no result then did not run.

        Parameters
        ----------
        best
            The best mode that the driver and torch offer.
        why_not_better
            Why there is no better one; without a full stop.
        own
            File of the runtime directory that is to have the results, too.
        trusts_own
            Whether that is trusted as well, since sessions of the executor before this are still on the card.
        """
        notes: list[str] = []
        files = [] if self._trust is None else [self._trust]
        own_file = None if own is None else TrustFile(own)
        if own_file is not None and trusts_own:
            files.append(own_file)
        trusted: set[str] = set()
        for file in files:
            try:
                trusted |= file.passed(self._identity)
            except TrustUnusable as error:
                notes.append(str(error))
        steps = [step.name for step in steps_up_to(best)]
        results = [StepResult(step=name, outcome=Outcome.TRUSTED) for name in steps if name in trusted]
        results += await self._try([name for name in steps if name not in trusted])
        # also steps that were not to be tried now: they passed when they were
        passed = trusted | {result.step for result in results if result.outcome is Outcome.PASSED}
        for file in dict.fromkeys([*files, *([own_file] if own_file is not None else [])]):
            try:
                file.record(self._identity, passed)
            except TrustUnusable as error:
                if str(error) not in notes:
                    notes.append(str(error))
        return judge(results, best, why_not_better=why_not_better, notes=notes)

    async def _try(self, names: Sequence[str]) -> list[StepResult]:
        """Run steps in a process of their own; return a result for each."""
        if not names:
            return []
        results: list[StepResult] = []
        ended, over = "", f"torch and its libraries were not loaded within {self._load_seconds:.0f} s"
        with tempfile.TemporaryFile() as errors:
            try:
                process = await asyncio.create_subprocess_exec(
                    self._python,
                    "-m",
                    "sharedkernel.selftest",
                    *names,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    env=scrubbed_environment(self._python),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                return _not_run(names, f"its process did not start: {error.strerror}")
            try:
                async with asyncio.timeout(self._load_seconds) as limit:
                    assert process.stdout is not None
                    async for line in process.stdout:
                        if line == LOADED:
                            limit.reschedule(asyncio.get_running_loop().time() + self._seconds)
                            over = f"the self-test took longer than {self._seconds:.0f} s"
                        else:
                            results.append(msgspec.json.decode(line, type=StepResult))
                    ended = _describe_end(await process.wait())
            except TimeoutError:
                ended = over
            except ValueError:  # torch, or a library of its, wrote there
                ended = "the self-test's process wrote what is no result"
            finally:
                await _end(process)
            errors.seek(0)
            said = errors.read()[-10_000:].decode(errors="replace").strip()
        if said:
            log.info("the self-test's processes wrote:\n%s", said)
        done = {result.step for result in results}
        return results + _not_run([name for name in names if name not in done], ended)


def _not_run(names: Sequence[str], why: str) -> list[StepResult]:
    return [StepResult(step=name, outcome=Outcome.NOT_RUN, why=why) for name in names]


def _describe_end(status: int) -> str:
    if status < 0:
        return f"the self-test's process was ended by {signal.Signals(-status).name}"
    return f"the self-test's process ended with exit status {status}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of the self-test; its steps' processes end with theirs."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(_KILL_SECONDS):
            await process.wait()
    except TimeoutError:
        log.warning("the self-test's process %d does not end; it hangs in the driver", process.pid)
