"""The gate's access to a session's lane, whose memory is set up when CUDA is first used.

Until its user's code first touches the GPU a session has no context there, and must not make one by itself. Once it is
assigned with lanes (:meth:`SessionLane.enable`), its first grant sets up the arena and torch's pools, before the
operation that wanted the grant. From then on all of torch's memory comes by page from the executor: with a grant
:mod:`.lane_turns` asks for the lane's units, `executor/devices/lane_server.py` sends their descriptors, and
`device_memory/arena.py` maps them. Where that cannot be, torch's memory is its own as before; the executor is told why,
and shows it in status.

A turn is without a lane while threads of the user's are alive: they may use the device at any moment, also in somebody
else's turn. If they appear in the middle of a turn, the lane stays this session's until they are gone.

All calls but :meth:`SessionLane.section_began` and :meth:`SessionLane.is_device_idle` come from the main thread, with
its signals held.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any, Literal

from torch.utils._python_dispatch import _disable_current_modes

from sharedkernel import protocol
from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.cuda_driver import CudaDriver
from sharedkernel.device_memory.lane_memory import LaneMemory
from sharedkernel.device_memory.torch_pool import TorchPools, is_called_back
from sharedkernel.errors import SharedKernelError
from sharedkernel.ipc.fd_client import DescriptorClient
from sharedkernel.session.lanes.lane_turns import LaneTurns, UnitFetcher
from sharedkernel.session.memory.cuda_meter import CudaMeter
from sharedkernel.session.memory.torch_cuda import DEVICE

log = logging.getLogger(__name__)

#: names of threads that are told at most
_MOST_NAMES = 3


class SessionLane:
    """One session's way to its lane.

    Parameters
    ----------
    torch
        The module, or what stands in for it.
    meter
        Measures torch's allocator.
    channel
        To the executor.
    user_threads
        Returns the names of threads of the user's that are alive.
    """

    def __init__(
        self, torch: Any, meter: CudaMeter, channel: DescriptorClient, user_threads: Callable[[], list[str]]
    ) -> None:
        self._torch = torch
        #: torch's allocator
        self.cuda = meter.cuda
        self._meter = meter
        self._channel = channel
        self._user_threads = user_threads
        self._is_due = False
        self._check_lanes = False
        #: what the executor was last told
        self._note: str | None = None
        self._supplier = UnitFetcher(channel, self._check_limit)
        #: the session's turns, with its device memory, once they are set up
        self.turns: LaneTurns | None = None

    def enable(self, *, check_lanes: bool) -> None:
        """Set lanes up when CUDA is first used; called once the session is assigned.

        Parameters
        ----------
        check_lanes
            Poison the lane at each hand-over.
        """
        self._is_due, self._check_lanes = True, check_lanes

    @property
    def has_turn(self) -> bool:
        """Whether something of this session's iteration may be in its lane."""
        return self.turns is not None and self.turns.has_turn

    @property
    def is_settled(self) -> bool:
        """Whether boundaries at which the grant is kept need not be told for some time."""
        return self.turns is None or self.turns.memory.is_settled

    def is_device_idle(self) -> bool:
        """Return whether nothing of this session runs on the device (any thread); False where that is not known."""
        return self.turns is not None and self.turns.memory.is_device_idle()

    is_called_back = staticmethod(is_called_back)

    # --- what the gate says -------------------------------------------------------------------------------------------

    def section_began(self) -> None:
        """Prepare for other code than before."""
        if self.turns is not None:
            self.turns.section_began()

    def turn_began(self, *, has_lane: bool = True) -> None:
        """Take the lane that the grant is for, if there is one, and let iterations use it."""
        if self._is_due:
            self._is_due = False
            self._set_up()
        if self.turns is None:
            return
        note = _threads_alive(self._user_threads())
        if note is None:
            self._safely("take its lane", lambda turns: turns.turn_began(has_lane=has_lane))
            note = self.turns.memory.off_reason
        self._tell(note)

    def boundary_passed(self) -> None:
        """Handle a boundary at which the grant is kept."""
        self._safely("go on in its lane", LaneTurns.boundary_passed)

    def section_ended(self) -> None:
        """Give back what the section has freed."""
        self._safely("give memory back", LaneTurns.section_ended)

    def memory_freed(self) -> None:
        """Give back what was freed in the middle of a section: another of torch's pools may need it."""
        self._safely("give memory back", LaneTurns.memory_freed)

    def hand_over(self, at: Literal["boundary", "cell", "yield"]) -> bool:
        """Take everything that lives out of the lane; return whether the grant may go.

        If the grant may be released although the hand-over failed, the lane stays with this session, and others work
        without one.
        """
        if self.turns is None:
            return True
        if self.turns.has_turn and (note := _threads_alive(self._user_threads())) is not None:
            self._tell(note)
            return True
        result = self._safely("hand its lane over", lambda turns: turns.hand_over(at))
        if result is None and self.turns.has_turn and self._is_device_lost():
            self.turns.device_lost()
        return True if result is None else result

    def _is_device_lost(self) -> bool:
        """Return whether nothing of this process runs on the device any more, after a fault there."""
        try:
            self.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    # --- setting up ---------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        try:
            self._torch.cuda.init()
            self.cuda.limit(None)  # on a full device its own memory may be none, and pages have a limit themselves
            with _disable_current_modes():
                pools = TorchPools(
                    self._torch,
                    DEVICE,
                    self.cuda.unseen,
                    unnoticed=_disable_current_modes,
                    has_threads=lambda: bool(self._user_threads()),
                )
                arena = Arena(CudaDriver(DEVICE), self._supplier.release_units)
                memory = LaneMemory(arena, pools, self._supplier, check_lanes=self._check_lanes)
        except (SharedKernelError, RuntimeError, AttributeError) as error:  # torch and bindings may lack calls
            log.warning("lanes cannot be used", exc_info=True)
            self._tell(f"lanes cannot be used in its process: {error}")
            return
        pools.watch_user_pools()
        self._empty_cache_by_page(memory)
        self.turns = LaneTurns(memory, self._supplier, self._channel, lambda: self.cuda.look().allocated)
        self._meter.count_pages(self.turns)

    def _check_limit(self, size: int) -> None:
        if self.turns is not None:
            self.turns.check_limit(size)

    def _empty_cache_by_page(self, lanes: LaneMemory) -> None:
        """Let the user's `torch.cuda.empty_cache` give private pages back as well."""
        cuda = self._torch.cuda
        original = cuda.empty_cache

        @functools.wraps(original)
        def empty_cache() -> None:
            original()
            if threading.current_thread() is threading.main_thread():
                lanes.trim()

        cuda.empty_cache = cuda.memory.empty_cache = empty_cache

    def _safely(self, what: str, step: Callable[[LaneTurns], Any]) -> Any:
        """Do one step, if lanes are set up; if it fails, leave them alone from now on, and go on with own memory.

        If the device itself failed, the user's next operation raises a clearer error.
        """
        if self.turns is None:
            return None
        try:
            # What torch is asked for on the way is no operation of the user's, whose modes must not see it.
            with _disable_current_modes():
                return step(self.turns)
        except (SharedKernelError, RuntimeError) as error:
            log.exception("could not %s", what)
            self.turns.memory.turn_off(f"it could not {what}: {str(error).splitlines()[0] if str(error) else error!r}")
            self._tell(self.turns.memory.off_reason)
            return None

    def _tell(self, note: str | None) -> None:
        """Let the executor know why this session's iterations use no lane."""
        if note != self._note:
            self._note = note
            self._channel.tell(protocol.LaneUnused(note=note))


def _threads_alive(threads: list[str]) -> str | None:
    """Return why others must not use the lane, if threads may use the device at any moment."""
    if not threads:
        return None
    names = ", ".join(threads[:_MOST_NAMES])
    more = f" and {len(threads) - _MOST_NAMES} more" if len(threads) > _MOST_NAMES else ""
    return f"threads of its own are alive, which may use the device at any time: {names}{more}."
