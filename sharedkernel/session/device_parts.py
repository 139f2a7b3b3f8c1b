"""Choose the parts of a session by the kind of its device.

The kind of device decides how memory is measured and moved, and which operations are the device's: on the host all are,
on a GPU those that touch it. Only what is needed is imported, after the fork: the warm parent serves both kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.ipc.shared_page import Page
from sharedkernel.session.gate.dispatch_mode import OperationFilter, touches_cuda
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.offload.idleness import user_threads
from sharedkernel.session.offload.residency import HostMover, Mover, NoMover

if TYPE_CHECKING:
    from sharedkernel.ipc.fd_client import DescriptorClient
    from sharedkernel.session.lanes.session_lane import SessionLane


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """The parts of a session that depend on its device."""

    meter: Meter
    #: moves the session's memory
    mover: Mover
    #: the session's way to lanes whose bytes are shared; None where none are
    lanes: SessionLane | None = None
    #: called at each boundary, to keep a session from queuing ever more work; None where nothing is queued
    run_ahead: Callable[[], None] | None = None
    #: recognises the device's operations by their arguments; None: all are
    concerns: OperationFilter | None = None


def make_parts(device_kind: str, page: Page, mode: DeviceMemoryMode, channel: DescriptorClient) -> DeviceParts:
    """Return the parts for a device.

    Parameters
    ----------
    device_kind
        ``"host"`` or ``"cuda"``.
    page
        The session's, for figures that the executor reads.
    mode
        How a GPU's memory is shared.
    channel
        To the executor, for descriptors of units.
    """
    if device_kind != "cuda":
        from sharedkernel.session.memory.host_meter import HostMeter

        host = HostMeter(page)
        return DeviceParts(meter=host, mover=HostMover(host))
    import torch

    from sharedkernel.session.memory.cuda_meter import CudaMeter
    from sharedkernel.session.memory.torch_cuda import RunAhead, TorchCuda

    meter = CudaMeter(page, TorchCuda(torch, public_only=mode is DeviceMemoryMode.PLAIN))
    lanes: SessionLane | None = None
    mover: Mover = NoMover()
    if mode is not DeviceMemoryMode.PLAIN:
        from sharedkernel.session.offload.cuda import PageMover, StorageMover

        mover = storages = StorageMover(meter, meter.cuda.give_back)
        if mode is DeviceMemoryMode.SHARED:
            from sharedkernel.session.lanes.session_lane import SessionLane

            lanes = lane = SessionLane(torch, meter, channel, user_threads)
            mover = PageMover(lambda: lane.turns, storages, meter)
    run_ahead = RunAhead(torch.cuda).boundary_passed
    return DeviceParts(meter=meter, mover=mover, lanes=lanes, run_ahead=run_ahead, concerns=touches_cuda)
