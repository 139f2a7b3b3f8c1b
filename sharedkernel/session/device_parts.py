"""Choose the parts of a session by the kind of its device.

The kind of device decides how memory is measured and moved, and which operations are the device's: on the host all are,
on a GPU those that touch it. Only what is needed is imported, after the fork: the warm parent serves both kinds.
"""

from __future__ import annotations

from collections.abc import Callable
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


def make_meter(page: Page, device_kind: str, mode: DeviceMemoryMode = DeviceMemoryMode.SHARED) -> Meter:
    """Return the meter for a device.

    Parameters
    ----------
    page
        The session's, for figures that the executor reads.
    device_kind
        ``"host"`` or ``"cuda"``.
    mode
        How a GPU's memory is shared.
    """
    if device_kind == "cuda":
        import torch

        from sharedkernel.session.memory.cuda_meter import CudaMeter
        from sharedkernel.session.memory.torch_cuda import TorchCuda

        return CudaMeter(page, TorchCuda(torch, public_only=mode is DeviceMemoryMode.PLAIN))
    from sharedkernel.session.memory.host_meter import HostMeter

    return HostMeter(page)


def make_lanes(meter: Meter, device_kind: str, mode: DeviceMemoryMode, channel: DescriptorClient) -> SessionLane | None:
    """Return a session's way to lanes whose bytes are shared.

    Parameters
    ----------
    meter
        The session's.
    device_kind
        ``"host"`` or ``"cuda"``.
    mode
        How a GPU's memory is shared.
    channel
        To the executor, for descriptors of units.

    Returns
    -------
    SessionLane | None
        None on a device, or in a mode, where no bytes are shared.
    """
    if device_kind != "cuda" or mode is not DeviceMemoryMode.SHARED:
        return None
    import torch

    from sharedkernel.session.lanes.session_lane import SessionLane
    from sharedkernel.session.memory.cuda_meter import CudaMeter

    assert isinstance(meter, CudaMeter)
    return SessionLane(torch, meter, channel, user_threads)


def make_mover(
    meter: Meter, lanes: SessionLane | None, device_kind: str, mode: DeviceMemoryMode = DeviceMemoryMode.SHARED
) -> Mover:
    """Return what moves the memory of a session.

    Parameters
    ----------
    meter
        Measures what stays.
    lanes
        The session's way to its lane, if lanes are shared.
    device_kind
        ``"host"`` or ``"cuda"``.
    mode
        How the session has memory on a GPU.
    """
    if device_kind != "cuda":
        return HostMover(meter)
    if mode is DeviceMemoryMode.PLAIN:
        return NoMover()
    from sharedkernel.session.memory.cuda_meter import CudaMeter
    from sharedkernel.session.offload.cuda import PageMover, StorageMover

    assert isinstance(meter, CudaMeter)
    storages = StorageMover(meter, meter.cuda.give_back)
    return storages if lanes is None else PageMover(lambda: lanes.turns, storages, meter)


def make_run_ahead(device_kind: str) -> Callable[[], None] | None:
    """Return what keeps a session from queuing ever more work on its device.

    Parameters
    ----------
    device_kind
        ``"host"`` or ``"cuda"``.

    Returns
    -------
    Callable | None
        Called at each boundary; None where nothing is queued.
    """
    if device_kind != "cuda":
        return None
    import torch

    from sharedkernel.session.memory.torch_cuda import RunAhead

    return RunAhead(torch.cuda).boundary_passed


def operation_filter(device_kind: str) -> OperationFilter | None:
    """Return a filter that recognises the device's operations by their arguments.

    Parameters
    ----------
    device_kind
        ``"host"`` or ``"cuda"``.

    Returns
    -------
    OperationFilter | None
        None where all operations are the device's.
    """
    return touches_cuda if device_kind == "cuda" else None
