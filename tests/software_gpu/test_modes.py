"""Several devices, calls that fail at random, and work that is done as late as CUDA may."""

from __future__ import annotations

import pytest

from tests.software_gpu.support import run_python

pytestmark = pytest.mark.software_gpu


def test_two_devices_have_memory_and_work_of_their_own() -> None:
    """Copies between them and their streams work as on one."""
    code = """if True:
        import torch
        assert torch.cuda.device_count() == 2
        free = [torch.cuda.mem_get_info(device)[0] for device in (0, 1)]
        x = torch.arange(16 << 20, dtype=torch.uint8, device="cuda:1")
        assert torch.cuda.mem_get_info(0)[0] == free[0]
        assert torch.cuda.mem_get_info(1)[0] <= free[1] - (16 << 20)
        y = (x + 1).to("cuda:0")
        assert y.device.index == 0 and (x + 1).device.index == 1
        assert torch.equal(y.cpu(), x.cpu() + 1)
        uuids = {str(torch.cuda.get_device_properties(device).uuid) for device in (0, 1)}
        assert len(uuids) == 2
    """
    run_python(code, DEVICES=2, CONTEXT="8M")


def test_one_of_two_devices_can_be_shown_alone() -> None:
    """CUDA_VISIBLE_DEVICES takes numbers and UUIDs; NVML shows all."""
    code = """if True:
        import os, pynvml
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 2
        second = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1))
        os.environ["CUDA_VISIBLE_DEVICES"] = second
        import torch
        assert torch.cuda.device_count() == 1
        assert f"GPU-{torch.cuda.get_device_properties(0).uuid}" == second
    """
    run_python(code, DEVICES=2, CONTEXT="8M")


FAILURES = """if True:
    from tests.software_gpu.support import UNIT, Driver, DriverError
    driver = Driver()
    driver.cuInit(0)
    for _ in range(200):
        try:
            driver.cuMemRelease(driver.cuMemCreate(UNIT, driver.properties(), 0))
            print("ok")
        except DriverError as error:
            print(error)
"""


def test_calls_fail_at_random_where_that_is_wanted() -> None:
    """About as many as was said, with the error of a full device."""
    outcomes = run_python(FAILURES, FAIL_RATE=0.2).split()
    assert set(outcomes) == {"ok", "OUT_OF_MEMORY"}
    assert 15 <= outcomes.count("OUT_OF_MEMORY") <= 70
    assert set(run_python(FAILURES, FAIL_RATE=0.2, FAIL_CALLS="cuMemMap").split()) == {"ok"}


def test_failures_repeat_with_their_seed() -> None:
    """Another seed has other failures."""
    first = run_python(FAILURES, FAIL_RATE=0.2, FAIL_SEED=1)
    assert run_python(FAILURES, FAIL_RATE=0.2, FAIL_SEED=1) == first
    assert run_python(FAILURES, FAIL_RATE=0.2, FAIL_SEED=2) != first


#: reads on one stream what another writes, with and without waiting for it; and reuses pinned memory too early
RACE = """if True:
    import sys, torch
    waits = sys.argv[1] == "waits"
    side = torch.cuda.Stream()
    pinned = torch.ones(1024).pin_memory()
    x = torch.zeros(1024, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.copy_(pinned, non_blocking=True)
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    total = x.sum().item()
    if waits:
        side.synchronize()
    pinned.fill_(7)
    torch.cuda.synchronize()
    print(total, x[0].item())
"""


@pytest.mark.parametrize("defer", [0, 1])
def test_programs_that_wait_see_no_difference(defer: int) -> None:
    """Deferred work is complete before a wait for it returns."""
    assert run_python(RACE, "waits", DEFER=defer) == "1024.0 1.0\n"


def test_deferred_copies_show_what_nobody_waited_for() -> None:
    """The sum comes before the copy, and the copy takes what was written later."""
    assert run_python(RACE, "races", DEFER=0) == "1024.0 1.0\n"
    assert run_python(RACE, "races", DEFER=1) == "0.0 7.0\n"


def test_deferred_fills_come_after_what_did_not_wait_for_them() -> None:
    """A fill on the default stream wipes what a non-blocking stream copied in before it was done."""
    code = """if True:
        import ctypes
        from tests.software_gpu.support import UNIT, Driver
        driver = Driver()
        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0))
        stream = driver.cuStreamCreate(driver.module.CUstream_flags.CU_STREAM_NON_BLOCKING)
        address = driver.cuMemAlloc(UNIT)
        driver.cuMemsetD8Async(address, 0, 16, 0)
        driver.cuMemcpyHtoDAsync(address, b"x" * 16, 16, stream)
        driver.cuCtxSynchronize()
        text = ctypes.create_string_buffer(16)
        driver.cuMemcpyDtoH(text, address, 16)
        print(text.raw.count(b"x"))
    """
    assert run_python(code, DEFER=0) == "16\n"
    assert run_python(code, DEFER=1) == "0\n"


def test_losses_are_the_same_with_deferred_work() -> None:
    """A training with a prefetching side stream that waits as it must."""
    code = """if True:
        import torch
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 10).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(32, 64).pin_memory() for _ in range(8)]
        side = torch.cuda.Stream()
        for batch in batches:
            with torch.cuda.stream(side):
                x = batch.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(loss.item())
    """
    assert run_python(code, DEFER=1) == run_python(code, DEFER=0)
