"""The driver's order of calls around a suspended process, and what its refusals lead to."""

from __future__ import annotations

import asyncio

import pytest

from sharedkernel.executor.devices.cuda.checkpoint import (
    CheckpointFailed,
    ProcessCheckpoint,
    Suspensions,
    unavailable_because,
)
from sharedkernel.ipc.shared_page import Word
from tests.executor.devices.fake_cuda import CUprocessState, CUresult, FakeDriver
from tests.executor.devices.support import make_process
from tests.executor.harness import until

PID = 1000
RUNNING, LOCKED, CHECKPOINTED, FAILED = CUprocessState


@pytest.fixture
def driver() -> FakeDriver:
    driver = FakeDriver()
    driver.cuInit(0)
    driver.processes[PID] = RUNNING
    driver.calls.clear()
    return driver


def test_suspend_and_resume_follow_the_drivers_order(driver: FakeDriver) -> None:
    """Lock, checkpoint; restore, unlock."""
    checkpoint = ProcessCheckpoint(driver)
    checkpoint.suspend(PID)
    assert driver.processes[PID] is CHECKPOINTED
    checkpoint.resume(PID)
    assert driver.processes[PID] is RUNNING
    assert [name.removeprefix("cuCheckpointProcess") for name in driver.calls] == [
        "Lock", "Checkpoint", "Restore", "Unlock",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "result", "words"),
    [
        ("Lock", CUresult.CUDA_ERROR_NOT_READY, "did not end within 5 s"),
        ("Checkpoint", CUresult.CUDA_ERROR_NOT_SUPPORTED, "cannot checkpoint"),
    ],
)
def test_what_cannot_be_suspended_runs_on(driver: FakeDriver, call: str, result: CUresult, words: str) -> None:
    """Work that does not end, or a process that cannot be checkpointed: locked, its next CUDA call would block."""
    driver.results[f"cuCheckpointProcess{call}"] = result
    with pytest.raises(CheckpointFailed, match=words) as caught:
        ProcessCheckpoint(driver).suspend(PID)
    assert caught.value.is_usable
    assert driver.processes[PID] is RUNNING


def test_without_room_it_stays_suspended_and_can_be_tried_again(driver: FakeDriver) -> None:
    """A restore that fails for want of memory loses nothing."""
    checkpoint = ProcessCheckpoint(driver)
    checkpoint.suspend(PID)
    driver.results["cuCheckpointProcessRestore"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(CheckpointFailed, match="no memory") as caught:
        checkpoint.resume(PID)
    assert caught.value.is_usable
    assert driver.processes[PID] is CHECKPOINTED
    driver.results.clear()
    checkpoint.resume(PID)
    assert driver.processes[PID] is RUNNING


def test_a_process_left_bad_is_said_to_be_lost(driver: FakeDriver) -> None:
    """The driver knows a state for it."""
    driver.processes[PID] = FAILED
    with pytest.raises(CheckpointFailed, match="lost") as caught:
        ProcessCheckpoint(driver).resume(PID)
    assert not caught.value.is_usable


def test_a_driver_library_without_the_calls_is_one_sentence(driver: FakeDriver) -> None:
    """That is how the bindings say it: an exception, not a result."""
    driver.missing.add("cuCheckpointProcessLock")
    with pytest.raises(CheckpointFailed, match="not found"):
        ProcessCheckpoint(driver).suspend(PID)


@pytest.mark.parametrize(
    ("version", "shares", "words"),
    [
        ("580.65.06", False, None),
        ("565.57.01", False, "older than 570"),
        ("unknown", False, "older than 570"),
        ("580.65.06", True, "610 can"),
        ("610.10", True, None),
    ],
)
def test_where_it_is_not_available_it_says_why(version: str, shares: bool, words: str | None) -> None:
    """The driver's age, and whether sessions share memory, decide."""
    reason = unavailable_because(FakeDriver(), version, shares_memory=shares)
    assert reason is None if words is None else reason is not None and words in reason


def test_old_bindings_lack_the_calls() -> None:
    """They came with CUDA 12.8."""
    reason = unavailable_because(object(), "580.65.06", shares_memory=False)
    assert reason is not None
    assert "cuCheckpointProcessLock" in reason


class Watched(Suspensions):
    """Suspensions, a process with a context, and the processes that were lost."""

    def __init__(self, driver: FakeDriver) -> None:
        self.lost: list[str] = []
        self.process = make_process(pid=PID)
        self.process.page.words[Word.FRAMEWORK] = 7
        super().__init__(ProcessCheckpoint(driver), lambda gone: self.lost.append(gone.process))


async def test_a_session_is_suspended_and_resumed_one_call_at_a_time(driver: FakeDriver) -> None:
    """A resume that comes while it is being suspended waits for that; a second one finds nothing to do."""
    suspensions = Watched(driver)
    process, lost = suspensions.process, suspensions.lost
    suspended = asyncio.create_task(suspensions.suspend(process))
    await until(lambda: bool(driver.calls), "the suspension begins")
    await suspensions.resume(process)
    assert await suspended == 7
    assert driver.processes[PID] is RUNNING
    calls = len(driver.calls)
    await suspensions.resume(process)
    assert len(driver.calls) == calls
    assert lost == []


async def test_what_an_earlier_executor_suspended_is_resumed(driver: FakeDriver) -> None:
    """The driver knows, whoever asks: a session must not wait for an executor that is gone."""
    suspensions = Watched(driver)
    ProcessCheckpoint(driver).suspend(PID)
    await suspensions.resume(suspensions.process)
    assert driver.processes[PID] is RUNNING


async def test_a_session_without_a_context_is_left_alone(driver: FakeDriver) -> None:
    """There is nothing to free."""
    suspensions = Watched(driver)
    suspensions.process.page.words[Word.FRAMEWORK] = 0
    assert await suspensions.suspend(suspensions.process) == 0
    assert driver.calls == []


async def test_a_session_whose_memory_is_lost_is_ended(driver: FakeDriver) -> None:
    """Its user is told, rather than left with a kernel that cannot go on."""
    suspensions = Watched(driver)
    process, lost = suspensions.process, suspensions.lost
    await suspensions.suspend(process)
    driver.processes[PID] = FAILED
    await suspensions.resume(suspensions.process)
    assert lost == [process.process]
