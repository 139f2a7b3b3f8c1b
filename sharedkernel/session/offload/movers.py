"""Choose how a session's idle memory moves off its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.offload.host import CannotOffload
from sharedkernel.session.offload.residency import Departing, HostMover, Mover

if TYPE_CHECKING:
    from sharedkernel.session.lanes.client import LaneTurns


class NoMover:
    """Moves nothing: in plain mode a session's memory stays on the GPU until its user's code frees it."""

    keeps_addresses = False

    def prepare(self) -> Departing:
        """Decline.

        Raises
        ------
        CannotOffload
            Always.
        """
        raise CannotOffload("Device memory stays where it is in this run of the executor.", reason="mode")

    def why_kept(self) -> str | None:
        """Return None: nothing was ever moved."""
        return None


def make_mover(
    meter: Meter, lanes: LaneTurns | None, device_kind: str, mode: DeviceMemoryMode = DeviceMemoryMode.SHARED
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
    from sharedkernel.session.offload.cuda_pages import PageMover
    from sharedkernel.session.offload.cuda_storages import StorageMover

    assert isinstance(meter, CudaMeter)
    storages = StorageMover(meter, meter.cuda.give_back)
    return storages if lanes is None else PageMover(lambda: lanes.pages, storages, meter)
