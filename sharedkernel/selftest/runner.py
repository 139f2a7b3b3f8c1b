"""The executor's side of the self-test: starts its process, reads a result for each step, and keeps what passed.

What passed, with the same driver, torch, card and version of ours, is kept in a JSON file::

    {"sharedkernel_self_test": 1, "passed": [{"driver": "570.86", "torch": "2.11.0+cu130", "card": "NVIDIA H200",
     "uuid": "GPU-…", "sharedkernel": "0.1.0", "steps": ["training", …]}]}

The file is replaced as a whole, so that a crash leaves the old one or the new one. A file that cannot be read, or is of
another kind, is trusted in nothing and left as it is: it may be somebody's who mistyped a name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from sharedkernel._version import __version__
from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.errors import SharedKernelError
from sharedkernel.ipc.helper_process import scrubbed_environment
from sharedkernel.selftest.steps import LOAD_SECONDS, TOTAL_SECONDS, Outcome, StepResult, Verdict, judge, steps_up_to
from sharedkernel.system.atomic_file import replace_file

_MOST_BYTES = 1 << 20


class TrustUnusable(SharedKernelError):
    """A file of earlier results cannot be used: one sentence that says why and what to do."""

    reason = "trust"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances under which earlier results still count."""

    #: version of the driver
    driver: str
    #: version of torch, with its build
    torch: str
    #: name of the card
    card: str
    uuid: str
    sharedkernel: str = __version__


class _Passed(Identity, frozen=True, kw_only=True):
    """The steps that passed under some circumstances."""

    steps: list[str]

    def is_of(self, identity: Identity) -> bool:
        return msgspec.convert(self, Identity, from_attributes=True) == identity


class _Content(msgspec.Struct, kw_only=True):
    """The content of a file of earlier results."""

    sharedkernel_self_test: Literal[1]
    passed: list[_Passed]


class TrustFile:
    """One file of earlier results.

    Parameters
    ----------
    path
        Where it is, or is to be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def passed(self, identity: Identity) -> frozenset[str]:
        """Return the names of the steps that passed before; none without a file.

        Raises
        ------
        TrustUnusable
            When the file cannot be read, or is not one of earlier results.
        """
        return frozenset(name for entry in self._read() if entry.is_of(identity) for name in entry.steps)

    def record(self, identity: Identity, steps: Iterable[str]) -> None:
        """Write the names of *all* steps that are to be trusted from now on; others' entries stay.

        Raises
        ------
        TrustUnusable
            When the file is there and not one of earlier results, or cannot be written.
        """
        entries = [entry for entry in self._read() if not entry.is_of(identity)]
        if names := sorted(steps):
            entries.append(_Passed(**msgspec.structs.asdict(identity), steps=names))
        content = msgspec.json.format(msgspec.json.encode(_Content(sharedkernel_self_test=1, passed=entries)), indent=1)
        try:
            replace_file(self.path, content + b"\n")
        except OSError as error:
            raise TrustUnusable(
                f"the self-test's results cannot be written to {self.path} ({error.strerror}); name another file."
            ) from None

    def _read(self) -> list[_Passed]:
        try:
            with self.path.open("rb") as file:
                data = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TrustUnusable(
                f"{self.path} cannot be read ({error.strerror}), so no earlier self-test is trusted."
            ) from None
        try:
            return msgspec.json.decode(data, type=_Content).passed
        except (msgspec.DecodeError, RecursionError):
            raise TrustUnusable(
                f"{self.path} is no file of self-test results, so none is trusted; remove it, or name another file."
            ) from None


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
        self._trust = [] if trust is None else [TrustFile(trust)]
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
        notes: dict[str, None] = {}
        ours = [] if own is None else [TrustFile(own)]
        trusted: set[str] = set()
        for file in (*self._trust, *(ours if trusts_own else ())):
            try:
                trusted |= file.passed(self._identity)
            except TrustUnusable as error:
                notes[str(error)] = None
        steps = [step.name for step in steps_up_to(best)]
        results = [StepResult(step=name, outcome=Outcome.TRUSTED) for name in steps if name in trusted]
        results += await self._try([name for name in steps if name not in trusted])
        # also steps that were not to be tried now: they passed when they were
        passed = trusted | {result.step for result in results if result.outcome is Outcome.PASSED}
        for file in (*self._trust, *ours):
            try:
                file.record(self._identity, passed)
            except TrustUnusable as error:
                notes[str(error)] = None
        return judge(results, best, why_not_better=why_not_better, notes=list(notes))

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
                return [StepResult.not_run(name, f"its process did not start: {error.strerror}") for name in names]
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
        return results + [StepResult.not_run(name, ended) for name in names if name not in done]


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
