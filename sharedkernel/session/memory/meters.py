"""Which meter and lanes a session has, and what the gate and the boundaries need of any.

The kind of device decides how memory is measured, and which operations are the device's: on the host all are, on a GPU
those that touch it. Only what is needed is imported, after the fork: the warm parent serves both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.ipc.shared_page import Page
from sharedkernel.protocol import Allowance, Memory

if TYPE_CHECKING:
    from sharedkernel.ipc.fd_client import DescriptorClient
    from sharedkernel.session.lanes.client import LaneTurns

#: given an operation's arguments and keywords, whether it is the device's
OperationFilter = Callable[[Sequence[Any], Mapping[str, Any]], bool]

#: where a grant is given back
ReleasePoint = Literal["boundary", "cell", "yield"]


class Meter(Protocol):
    """Measures one session; called by its gate, its boundaries and its process."""

    #: called about ten times a second while a grant is held (on the meter's thread)
    on_clock: Callable[[], None]
    #: called with the bytes in use whenever they are sampled while a grant is held (on the meter's thread)
    on_sample: Callable[[int], None]

    def start(self) -> None:
        """Start to measure."""

    def start_over(self) -> None:
        """Take what is in use now as the baseline: it is nobody's data."""

    @property
    def memory(self) -> Memory:
        """The figures last measured."""

    @property
    def used_bytes(self) -> int:
        """Bytes in use now, beyond the baseline."""

    @property
    def is_stable(self) -> bool:
        """Whether the peak has not risen for a while."""

    def data_bytes(self) -> int:
        """Return what a limit on this process's private memory must allow besides tensors (host device)."""

    def allow(self, allowance: Allowance) -> None:
        """Take note of how far the session may grow (any thread)."""

    def grant_began(self) -> None:
        """Start to look for the peak."""

    def grant_ended(self, *, at_boundary: bool) -> int:
        """Wait until nothing runs on the device; return the live bytes beyond persistent, at a boundary 0."""

    def boundary_measured(self) -> None:
        """Measure at a boundary, with the grant kept."""

    def look_closely(self) -> None:
        """Take note that other code may run now."""

    def source_read(self, source: str) -> None:
        """Record which source runs now, by its hash."""

    def forget_peak(self) -> bool:
        """Forget what iterations have needed, so that the next one is measured anew; return whether it was anything.

        What an interrupted one has stays.
        """

    def measure_idle(self) -> None:
        """Measure between cells, when everything in use is persistent."""

    def went_away(self, size: int) -> None:
        """Take note that *size* bytes were moved away."""

    def came_back(self) -> None:
        """Take note that everything is back."""

    def utilisation(self) -> float | None:
        """Return how busy the session kept the device since the grant began, or this was asked last (0 to 1).

        None: that is not known.
        """


class Lanes(Protocol):
    """The session's lane, where its bytes are shared: :class:`~sharedkernel.session.lanes.client.LaneTurns`."""

    @property
    def has_turn(self) -> bool:
        """Whether something of this session's iteration may be in its lane."""

    def is_called_back(self) -> bool:
        """Whether torch's allocator is calling back in this thread."""

    def section_began(self) -> None:
        """Take note that other code begins to run than before."""

    def turn_began(self, *, has_lane: bool) -> None:
        """Take the lane that a grant is for, if there is one."""

    def boundary_passed(self) -> None:
        """Take note of a boundary at which the grant is kept."""

    def hand_over(self, at: ReleasePoint) -> bool:
        """Hand the lane over; return whether the grant may go."""


def make_meter(page: Page, device_kind: str, mode: DeviceMemoryMode = DeviceMemoryMode.SHARED) -> Meter:
    """Return the meter for a device of this kind, ``"host"`` or ``"cuda"``; on a GPU, for memory of this mode."""
    if device_kind == "cuda":
        import torch

        from sharedkernel.session.memory.cuda_meter import CudaMeter
        from sharedkernel.session.memory.torch_cuda import TorchCuda

        return CudaMeter(page, TorchCuda(torch, public_only=mode is DeviceMemoryMode.PLAIN))
    from sharedkernel.session.memory.host_meter import HostMeter

    return HostMeter(page)


def make_lanes(meter: Meter, device_kind: str, mode: DeviceMemoryMode, channel: DescriptorClient) -> LaneTurns | None:
    """Return a session's way to lanes whose bytes are shared; None on a device, or in a mode, where none are."""
    if device_kind != "cuda" or mode is not DeviceMemoryMode.SHARED:
        return None
    import torch

    from sharedkernel.session.lanes.client import LaneTurns
    from sharedkernel.session.memory.cuda_meter import CudaMeter

    assert isinstance(meter, CudaMeter)
    return LaneTurns(torch, meter, channel)


def make_run_ahead(device_kind: str) -> Callable[[], None] | None:
    """Return what keeps a session from queuing ever more work on its device; None where nothing is queued."""
    if device_kind != "cuda":
        return None
    import torch

    from sharedkernel.session.gate.run_ahead import RunAhead

    return RunAhead(torch.cuda).boundary_passed


def operation_filter(device_kind: str) -> OperationFilter | None:
    """Return what tells the device's operations from others by their arguments; None where all are the device's."""
    return touches_cuda if device_kind == "cuda" else None


def touches_cuda(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Return whether an operation with these arguments uses the GPU: it has a tensor there, or makes one.

    Parameters
    ----------
    arguments, keywords
        As a dispatch mode gets them. Of lists (as `torch.cat` and fused optimizers have) every element counts.
    """
    device = keywords.get("device")
    if device is not None and getattr(device, "type", None) == "cuda":
        return True
    return any(map(_is_on_gpu, arguments)) or any(map(_is_on_gpu, keywords.values()))


def _is_on_gpu(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_on_gpu, value))
    return bool(getattr(value, "is_cuda", False))
