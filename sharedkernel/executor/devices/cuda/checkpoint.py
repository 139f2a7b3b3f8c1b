"""Suspend a whole process's use of the GPU by the driver's checkpoint calls: all its device memory goes to the host.

It is a second way to give memory back, for what offloading torch's memory leaves behind: the CUDA context itself and
other libraries' allocations, hundreds of MiB a session. The driver does it from outside, by process id. It is opt-in,
for good reasons: it needs driver 570, waits for all submitted work, refuses processes that share device memory with
others before driver 610, and an error may leave the process unusable, which is then said.

The order is the driver's: *running*, lock, *locked*, checkpoint, *checkpointed*, and back by restore and unlock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.shared_page import Word

log = logging.getLogger(__name__)

#: milliseconds that the lock may wait for work that the process has submitted
LOCK_TIMEOUT_MS = 5000
#: first driver that has the calls, and first that can checkpoint processes which share device memory
LEAST_DRIVER, SHARING_DRIVER = 570, 610
#: seconds between attempts to bring a suspended process's memory back
_RESUME_INTERVAL = 1.0
_CALLS = (
    "cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore",
    "cuCheckpointProcessUnlock", "cuCheckpointProcessGetState",
)  # fmt: skip


class CheckpointFailed(SharedKernelError):
    """A process could not be suspended or resumed.

    Parameters
    ----------
    message
        One sentence.
    is_usable
        Whether the process still has its device memory and runs on.
    """

    reason = "checkpoint"

    def __init__(self, message: str, *, is_usable: bool) -> None:
        super().__init__(message)
        self.is_usable = is_usable


def unavailable_because(driver: Any, driver_version: str, *, shares_memory: bool) -> str | None:
    """Return why processes cannot be checkpointed here, in one sentence; None if they can.

    Parameters
    ----------
    driver
        The module `cuda.bindings.driver`, or what stands in for it; None where it is missing.
    driver_version
        As NVML gives it, such as ``"580.65.06"``.
    shares_memory
        Whether the processes have device memory in common with others.
    """
    major = int(driver_version.partition(".")[0]) if driver_version.partition(".")[0].isdecimal() else 0
    if major < LEAST_DRIVER:
        return f"process checkpoint is not available because driver {driver_version} is older than {LEAST_DRIVER}."
    missing = [name for name in _CALLS if not hasattr(driver, name)]
    if missing:
        return f"process checkpoint is not available because the installed cuda-bindings have no {missing[0]}."
    if shares_memory and major < SHARING_DRIVER:
        return (
            f"process checkpoint is not available because sessions share their lanes' memory, which driver "
            f"{driver_version} cannot checkpoint ({SHARING_DRIVER} can)."
        )
    return None


class ProcessCheckpoint:
    """Suspends and resumes processes; calls block, for as long as copying their memory takes.

    Parameters
    ----------
    driver
        The module `cuda.bindings.driver`, initialised (`cuInit`) in this process.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def is_suspended(self, pid: int) -> bool:
        """Return whether process *pid* waits to be resumed: this executor, or the one before it, suspended it."""
        return self._state(pid) in ("locked", "checkpointed")

    def suspend(self, pid: int) -> None:
        """Move all device memory of process *pid* to the host; its CUDA calls block from now on.

        Raises
        ------
        CheckpointFailed
            Then the process runs on as before, unless the error says that it cannot.
        """
        driver = self._driver
        arguments = driver.CUcheckpointLockArgs()
        arguments.timeoutMs = LOCK_TIMEOUT_MS
        self._call("cuCheckpointProcessLock", "lock", pid, arguments)
        try:
            self._call("cuCheckpointProcessCheckpoint", "checkpoint", pid, driver.CUcheckpointCheckpointArgs())
        except CheckpointFailed:
            self._unlock(pid)
            raise

    def resume(self, pid: int) -> None:
        """Bring the memory of process *pid* back, and let it run.

        Raises
        ------
        CheckpointFailed
            When the device has no room (then it stays suspended and can be tried again), or it is lost.
        """
        if self._state(pid) == "checkpointed":
            arguments = self._driver.CUcheckpointRestoreArgs()
            self._call("cuCheckpointProcessRestore", "restore", pid, arguments)
        self._unlock(pid)
        if self._state(pid) == "failed":
            raise CheckpointFailed(
                f"process {pid} cannot be resumed: its device memory is lost, and it has to be restarted.",
                is_usable=False,
            )

    def _unlock(self, pid: int) -> None:
        if self._state(pid) == "locked":
            self._call("cuCheckpointProcessUnlock", "unlock", pid, self._driver.CUcheckpointUnlockArgs())

    def _state(self, pid: int) -> str:
        """Return ``running``, ``locked``, ``checkpointed`` or ``failed``; ``failed`` where the driver will not tell."""
        try:
            result, *values = self._driver.cuCheckpointProcessGetState(pid)
        except RuntimeError:
            return "failed"
        if result != self._driver.CUresult.CUDA_SUCCESS:
            return "failed"
        return str(self._driver.CUprocessState(int(values[0])).name).removeprefix("CU_PROCESS_STATE_").lower()

    def _call(self, name: str, verb: str, pid: int, arguments: Any) -> None:
        try:
            (result, *_) = getattr(self._driver, name)(pid, arguments)
        except RuntimeError as error:  # how cuda-bindings says that the driver lacks the call
            raise CheckpointFailed(
                f"process {pid} could not be suspended: the driver cannot {verb} it ({error}).", is_usable=True
            ) from None
        codes = self._driver.CUresult
        if result == codes.CUDA_SUCCESS:
            return
        reasons = {
            codes.CUDA_ERROR_NOT_SUPPORTED: "it uses what this driver cannot checkpoint, such as memory that it shares",
            codes.CUDA_ERROR_NOT_READY: f"its work did not end within {LOCK_TIMEOUT_MS / 1000:g} s",
            codes.CUDA_ERROR_ILLEGAL_STATE: "it is not in the state for that",
            codes.CUDA_ERROR_OUT_OF_MEMORY: "there is no memory for it",
            codes.CUDA_ERROR_NOT_INITIALIZED: "it does not use the device",
        }
        why = reasons.get(result, f"the driver said {getattr(result, 'name', result)}")
        is_usable = self._state(pid) != "failed"
        lost = "" if is_usable else "; its device memory is lost, and it has to be restarted"
        raise CheckpointFailed(f"the driver could not {verb} process {pid}: {why}{lost}.", is_usable=is_usable)


@dataclass(slots=True)
class _Suspension:
    process: SessionHandle
    #: keeps the calls for this process apart
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_suspended: bool = False


class Suspensions:
    """Sessions' processes that are suspended, or about to be.

    Parameters
    ----------
    checkpoint
        Does it; called in threads.
    lose
        Called with a process whose device memory is lost.
    """

    def __init__(self, checkpoint: ProcessCheckpoint, lose: Callable[[SessionHandle], None]) -> None:
        self._checkpoint = checkpoint
        self._lose = lose
        self._known: dict[str, _Suspension] = {}

    async def suspend(self, process: SessionHandle) -> int:
        """Suspend a process that is idle; return the bytes of framework memory that this freed."""
        framework = max(0, process.page.words[Word.FRAMEWORK])
        if not framework:  # it has no context yet
            return 0
        self._known = {name: known for name, known in self._known.items() if not known.process.ended.is_set()}
        known = self._known.setdefault(process.process, _Suspension(process))
        async with known.lock:
            try:
                await asyncio.to_thread(self._checkpoint.suspend, process.pid)
            except CheckpointFailed as error:
                log.warning("%s", error)
                if not error.is_usable:
                    self._lose(process)
                return 0
            known.is_suspended = True
        return framework

    async def resume(self, process: SessionHandle) -> None:
        """Let a process go on, as soon as the device has room for it."""
        known = self._known.setdefault(process.process, _Suspension(process))
        async with known.lock:
            if not known.is_suspended and process.page.words[Word.FRAMEWORK] > 0:
                known.is_suspended = await asyncio.to_thread(self._checkpoint.is_suspended, process.pid)
            while known.is_suspended and not process.ended.is_set():
                try:
                    await asyncio.to_thread(self._checkpoint.resume, process.pid)
                    known.is_suspended = False
                except CheckpointFailed as error:
                    log.warning("%s", error)
                    if error.is_usable:
                        await asyncio.sleep(_RESUME_INTERVAL)
                    else:
                        known.is_suspended = False
                        self._lose(process)
