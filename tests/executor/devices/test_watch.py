"""The watch on one GPU: samples, a GPU that goes and comes back, and who is accused of what."""

from __future__ import annotations

import pytest

from sharedkernel.executor.devices.cuda.monitor import GpuMonitor
from sharedkernel.executor.devices.overuse import CONTEXT_BYTES, Overuse
from sharedkernel.ipc.shared_page import Word
from sharedkernel.protocol import Device, Limits, Memory
from sharedkernel.system.nvml import Gpu, GpuSample
from tests.executor.devices.support import GIB, Recorder, make_process
from tests.executor.harness import until
from tests.fake_nvml import FakeGpu, FakeNvml

DEVICE = Device(name="gpu", kind="cuda", capacity_bytes=100 * GIB, reserve_bytes=0)


async def test_a_gpu_that_disappears_is_told_and_found_again() -> None:
    """While it is gone there are no samples; then they go on."""
    fake = FakeGpu(used=GIB)
    samples: list[GpuSample] = []
    watch = GpuMonitor(Gpu("cuda:0", library=FakeNvml(fake), host_pids=True), samples.append, interval=0.001)
    watch.start()
    try:
        await until(lambda: samples, "a sample")
        fake.lost = True
        await until(lambda: watch.lost is not None, "the loss is seen")
        assert "does not answer any more" in str(watch.lost)
        fake.used = 2 * GIB
        fake.lost = False  # from now on a sample may be taken at any moment
        await until(lambda: watch.lost is None, "the return is seen")
        assert watch.latest is not None
        assert watch.latest.used_bytes == 2 * GIB
    finally:
        watch.stop()


async def test_nobody_is_warned_for_one_look_and_who_frees_it_in_time_is_forgiven() -> None:
    """An excess has to last until the next look; then steps follow, `patience` apart, up to the end."""
    recorder = Recorder(make_process("p", pid=7, limits=Limits(user="ada", quota_bytes=4 * GIB)))
    overuse = Overuse(DEVICE, recorder, 30.0)

    def look(now: float, *, is_beyond: bool = True) -> list[str]:
        recorder.done.clear()
        overuse.look(recorder.sessions(), {7: 60 * GIB if is_beyond else 0}, now)
        return [what for what, _, _ in recorder.done]

    assert [look(0.0), look(1.0), look(2.0, is_beyond=False)] == [[], ["warn"], []]
    done = list(map(look, (40.0, 41.0, 70.0, 71.0, 101.0, 139.0)))
    assert done == [[], ["warn"], [], ["offload"], ["end"], []]


@pytest.mark.parametrize("beyond", [False, True])
async def test_memory_outside_torch_counts_to_the_quota(beyond: bool) -> None:
    """A context is free, what torch holds is counted as what it uses of it, and the rest is added."""
    limits = Limits(user="ada", quota_bytes=8 * GIB)
    process, other = make_process("p", pid=7, limits=limits), make_process("q", pid=8, limits=Limits(user="bob"))
    process.memory = Memory(persistent=3 * GIB)
    process.page.words[Word.RESERVED] = 4 * GIB
    recorder = Recorder(process, other)
    overuse = Overuse(DEVICE, recorder, 0.0)
    outside = 5 * GIB + (1 if beyond else 0)
    used = {7: 4 * GIB + CONTEXT_BYTES + outside, 8: 60 * GIB, 9: 90 * GIB}
    for now in range(5):
        overuse.look(recorder.sessions(), used, now)
    done = recorder.done
    assert [(what, who) for what, who, _ in done] == ([("warn", "p"), ("offload", "p"), ("end", "p")] if beyond else [])
    if beyond:
        assert "5.0 GiB on the device outside PyTorch" in str(done[0][2])
        assert "your quota of 8.0 GiB" in str(done[0][2])
        reason, message = done[2][2]  # type: ignore[misc]
        assert reason == "overuse"
        assert "Your session was ended" in message


@pytest.mark.parametrize(("on_shelf", "is_beyond"), [(0, False), (1, True)])
async def test_a_shelf_counts_to_the_quota(on_shelf: int, is_beyond: bool) -> None:
    """What is outside torch has to fit beside it."""
    process = make_process("p", pid=7, limits=Limits(user="ada", quota_bytes=4 * GIB))
    recorder = Recorder(process)
    recorder.shelves["ada"] = on_shelf * GIB
    overuse = Overuse(DEVICE, recorder, 30.0)
    for now in range(2):
        overuse.look(recorder.sessions(), {7: 4 * GIB + CONTEXT_BYTES}, now)
    assert bool(recorder.done) is is_beyond


async def test_of_a_users_sessions_the_one_that_holds_most_is_accused() -> None:
    """Their quota is one; who takes most of it outside torch gives it back."""
    limits = Limits(user="ada", quota_bytes=4 * GIB)
    recorder = Recorder(make_process("p", pid=7, limits=limits), make_process("q", pid=8, limits=limits))
    overuse = Overuse(DEVICE, recorder, 30.0)
    for now in range(2):
        overuse.look(recorder.sessions(), {7: 3 * GIB, 8: 4 * GIB}, now)
    assert [(what, who) for what, who, _ in recorder.done] == [("warn", "q")]
