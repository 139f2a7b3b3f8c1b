"""The further needs of private mode: torch's figures of memory as the meter takes them, and tensors that move."""

from __future__ import annotations

import torch

from sharedkernel.device_memory.driver import MIB
from sharedkernel.ipc.shared_page import Page
from sharedkernel.selftest.lane_process import empty
from sharedkernel.selftest.tenants import checksum, expect, fill
from sharedkernel.session.memory.cuda_meter import CudaMeter
from sharedkernel.session.memory.torch_cuda import TorchCuda
from sharedkernel.session.offload.cuda import StorageMover


def _meter() -> CudaMeter:
    """Return a session's meter, as in private mode."""
    for name in ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"):
        expect(hasattr(torch._C, name), f"torch {torch.__version__} has no {name}")
    meter = CudaMeter(Page.create("sharedkernel-self-test"), TorchCuda(torch))
    meter.start()
    meter.device_acquired()
    return meter


def peaks() -> None:
    """Measure iterations, and look whether memory goes back with the grant."""
    meter = _meter()
    meter.grant_began()
    kept = empty(16 * MIB)
    meter.boundary_measured()
    for size in (24, 48):
        meter.grant_began()
        work = empty(size * MIB)
        del work
        meter.boundary_measured()
        seen = meter.memory.ephemeral or 0
        expect(size * MIB <= seen < (size + 4) * MIB, f"a peak of {size} MiB was measured as {seen // MIB} MiB")
    meter.grant_ended(at_boundary=True)
    expect(kept.numel() <= meter.memory.persistent < 20 * MIB, "what stays was not measured right")
    expect(torch.cuda.memory_reserved() < 48 * MIB, "torch keeps memory that was to be given back")
    meter.cuda.free_bytes()


def tensors_moved() -> None:
    """Move tensors to the host and back, with a view and a gradient that share them."""
    meter = _meter()
    kept = empty(24 * MIB)
    expected = fill(kept, 3)
    view = kept[8 * MIB :]
    expected_view = checksum(view)
    weight = torch.ones(MIB, device="cuda", requires_grad=True)
    (weight * 2).sum().backward()
    mover = StorageMover(meter, meter.cuda.give_back)
    pending = mover.prepare()
    expect(pending.size >= 32 * MIB, "tensors were not found")
    pending.write()
    offloaded = pending.commit()
    expect(torch.cuda.memory_allocated() < 4 * MIB, "tensors that moved are still on the device")
    offloaded.restore(lambda size: None)
    expect(checksum(kept) == expected, "a tensor that moved came back with other bytes")
    expect(checksum(view) == expected_view, "a view of a tensor that moved has other bytes")
    gradient = weight.grad
    expect(gradient is not None and bool((gradient == 2).all()), "a gradient that moved has other values")
