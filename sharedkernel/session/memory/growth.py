"""Ask for more memory in the middle of a cell, before an allocation fails or after one did.

The executor leases each session what the device and its user's quota have left. Where that is little, a cell may need
more than its lease while others are about to give memory back: it then releases the device (its live bytes stay
charged), asks for a grant with *growth*, and waits as for any grant.

Both ways need the dispatch mode. Where there is ample room, or none that could be gained, the mode leaves after the
first operation. Elsewhere it stays in until the session's need is known: until one whole iteration was measured, or the
peak has not risen for a while. While it is out, the meter's samples show whether memory gets scarce; then the mode
returns (:meth:`Growth.wants_guard`), mostly before an allocation fails.

- *Headroom*: little is left of the allowance. Asked for before the next operation, since what fails in the middle of
  one cannot always be done again. A refusal then is no error: the operation may fit.
- *Failure*: torch's allocator failed inside an operation that changes nothing in place. It is done again after the
  grant. A refusal is the user's `torch.OutOfMemoryError`, with the executor's figures.

Nothing is asked for that the user's quota or the device's size cannot give: that stays an error at once
(:mod:`.lease_check`).
"""

from __future__ import annotations

import time
from typing import Any

from sharedkernel import protocol
from sharedkernel.session.memory import reclaimable
from sharedkernel.session.memory.host_meter import limit_headroom
from sharedkernel.session.memory.lease_check import LeaseCheck, most_allowed
from sharedkernel.session.memory.meters import Meter
from sharedkernel.units import format_bytes, round_up

#: growth is asked for in multiples of this, in bytes
STEP = 16 << 20
#: headroom below which more is asked for, in bytes, and as a part of the allowance
LEAST_HEADROOM, HEADROOM_PART = 32 << 20, 16
#: asked for beyond what failed, in bytes: an operation may need more than the one allocation
MARGIN = 32 << 20
#: seconds between two looks at the headroom
LOOK_INTERVAL = 0.001
#: least and most seconds between two looks at boundaries, with the mode out, and how many times a look's own time
BOUNDARY_INTERVAL, LONGEST_INTERVAL, INTERVAL_OVER_COST = 0.005, 0.05, 300
#: passes of boundaries within a section after which one whole iteration was measured
PASSES_MEASURED = 2
#: bytes that an iteration may leave behind and count as leaving nothing
LEFT_BEHIND = 1 << 20


class Growth:
    """Decides when one session asks for more memory.

    Parameters
    ----------
    meter, lease
        What it uses, and what it may.
    """

    def __init__(self, meter: Meter, lease: LeaseCheck) -> None:
        self._meter = meter
        self._lease = lease
        self._next_look = 0.0
        #: bytes in use below which headroom is not asked for again
        self._content_until = 0
        #: boundaries passed since memory was last seen to grow, and bytes in use at the last of them
        self._passes = 0
        self._used_at_boundary = 0
        #: bytes in use below which the mode need not return
        self._calm_until = 0
        #: bytes that a cell failed for, and its source
        self._missed = 0
        self._missed_by: str | None = None
        #: when :attr:`may_leave` is looked at again, and what it was
        self._next_answer = 0.0
        self._may_leave = False
        #: the running code failed for want of memory when it ran last
        self._is_wary = False

    def section_began(self) -> None:
        """Other code may run now than before."""
        self._passes = self._used_at_boundary = 0
        self._content_until = self._calm_until = 0
        self._next_answer = 0.0
        # an allocation that fails where the mode is out cannot be tried again
        self._is_wary = reclaimable.is_held() and self._is_half_used

    @property
    def _is_half_used(self) -> bool:
        allowance, used = self._lease.allowance, self._meter.used_bytes
        return allowance is not None and _room(allowance, used) < used

    def boundary_passed(self) -> None:
        """Handle a boundary at which memory was measured."""
        used = self._meter.used_bytes
        if used > self._used_at_boundary + LEFT_BEHIND and self._is_scarce(used):
            self._passes = 0
        self._passes += 1
        self._used_at_boundary = used

    @property
    def is_guard_due(self) -> bool:
        """Whether the mode has to go in again: memory grows from iteration to iteration, and little is left."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + BOUNDARY_INTERVAL
        used = self._meter.used_bytes
        return used > self._used_at_boundary + LEFT_BEHIND and self._is_scarce(used)

    @property
    def is_lease_exceeded(self) -> bool:
        """Whether more is in use at a boundary than was leased, so that the executor has to lease more."""
        allowance = self._lease.allowance
        return allowance is not None and self._meter.memory.persistent > allowance.limit_bytes

    def _is_scarce(self, used: int) -> bool:
        allowance = self._lease.allowance
        if allowance is None:
            return False
        left = _left(allowance, used) - (self._meter.memory.ephemeral or 0)
        return left < 2 * _least_headroom(allowance)

    @property
    def is_measured(self) -> bool:
        """One whole iteration was measured in this section."""
        return self._passes >= PASSES_MEASURED

    @property
    def may_leave(self) -> bool:
        """The mode is not needed: the need is known, or there is ample room.

        Asked at each operation while the mode is in, so the figures are looked at once a millisecond at most.
        """
        if self.is_measured or self._is_wary:
            return self.is_measured
        now = time.monotonic()
        if now >= self._next_answer:
            is_quiet = self._meter.is_stable and not self._is_scarce(self._meter.used_bytes)
            self._may_leave = is_quiet or self._has_ample_room()
            self._next_answer = now + LOOK_INTERVAL
        return self._may_leave

    @property
    def is_crowded(self) -> bool:
        """Whether less than half of what the session could ever have is left to it."""
        allowance, used = self._lease.allowance, self._meter.used_bytes
        return allowance is not None and 2 * _left(allowance, used) < _room(allowance, 0)

    def _has_ample_room(self) -> bool:
        allowance, used = self._lease.allowance, self._meter.used_bytes
        if allowance is None:
            return True
        left = _left(allowance, used)
        gain = _room(allowance, used) - left
        if gain <= 0:
            return True
        # A single large allocation is not seen coming, so there must be far more than others could give.
        return left >= 2 * gain and left > 4 * (self._meter.memory.ephemeral or 0)

    def wants_guard(self, used: int) -> bool:
        """Return whether the mode has to return, with *used* bytes in use (any thread, at each of the meter's samples).

        It does where memory gets scarce before the need is known, or where more is used than was ever needed before.
        """
        allowance = self._lease.allowance
        if allowance is None or used < self._calm_until:
            return False
        left = allowance.limit_bytes - used
        if left >= _room(allowance, used):
            return False
        memory = self._meter.memory
        known = memory.persistent + (memory.ephemeral or 0)
        if used <= known + known // HEADROOM_PART:
            return False
        if left >= max(2 * _least_headroom(allowance), used - memory.persistent, allowance.limit_bytes // 4):
            return False
        self._calm_until = used + STEP
        self._passes = 0
        return True

    @property
    def figures(self) -> str:
        """The figures that decisions are made with, for the log."""
        allowance, memory, used = self._lease.allowance, self._meter.memory, self._meter.used_bytes
        if allowance is None:
            return "no limit is known"
        return (
            f"{format_bytes(used)} in use of {format_bytes(allowance.limit_bytes)} leased, room for "
            f"{format_bytes(_room(allowance, used))} more, {format_bytes(memory.persistent)} persistent and "
            f"{format_bytes(memory.ephemeral or 0)} ephemeral known, the heap may grow by "
            f"{format_bytes(limit_headroom() or 0)}"
        )

    def failed(self, error: BaseException, source: str | None) -> bool:
        """Record an allocation that failed and ended a cell.

        Returns
        -------
        Whether the next run of *source* asks for that much with its first grant: others may give it by then.
        """
        allowance = self._lease.allowance
        if allowance is None or source is None:
            return False
        needed = round_up((self._lease.asked_bytes(error) or STEP) + MARGIN, STEP)
        is_possible = needed <= _room(allowance, self._meter.used_bytes)
        self._missed, self._missed_by = needed if is_possible else 0, source
        return is_possible

    def take_missed(self, source: str | None) -> int:
        """Return, once, the bytes that the last run of *source* failed for; this one is then watched until measured."""
        if self._missed_by is None or source != self._missed_by:
            return 0
        missed, self._missed, self._missed_by = self._missed, 0, None
        self._is_wary = True
        return missed

    def before_operation(self) -> int:
        """Return how many bytes to ask for before the next operation: 0 nearly always.

        Called before each operation while the mode is in, so it looks once a millisecond at most.
        """
        now = time.monotonic()
        if now < self._next_look:
            return 0
        self._next_look = now + LOOK_INTERVAL
        allowance = self._lease.allowance
        if allowance is None:
            return 0
        used = self._meter.used_bytes
        left = allowance.limit_bytes - used
        if left >= _least_headroom(allowance) or used < self._content_until:
            return 0
        more = max(STEP, allowance.limit_bytes // (HEADROOM_PART // 2))
        growth = round_up(max(0, left) + more, STEP)
        if growth > _room(allowance, used):
            return 0
        self._content_until = used + STEP
        return growth

    def may_repeat(self, operation: Any, error: BaseException) -> bool:
        """Return whether *operation*, which failed with *error*, can be done again once there is more memory."""
        schema = getattr(operation, "_schema", None)
        if self._lease.allowance is None or schema is None or schema.is_mutable:
            return False
        return self._lease.is_allocation_failure(error)

    def after_failure(self, error: BaseException) -> int:
        """Return how many bytes to ask for so that what failed with *error* can be done again; 0: there is no room."""
        allowance = self._lease.allowance
        assert allowance is not None
        needed = self._lease.asked_bytes(error) or STEP
        room = _room(allowance, self._meter.used_bytes)
        # The executor may count a little more than is in use here: the margin must not make it refuse what is needed.
        return min(round_up(needed + MARGIN, STEP), max(needed, room - STEP)) if needed <= room else 0


def _left(allowance: protocol.Allowance, used: int) -> int:
    """Return the bytes that a session may still take: less than its allowance leaves where its heap has many holes."""
    left, headroom = allowance.limit_bytes - used, limit_headroom()
    return left if headroom is None else min(left, headroom)


def _least_headroom(allowance: protocol.Allowance) -> int:
    return max(LEAST_HEADROOM, allowance.limit_bytes // HEADROOM_PART)


def _room(allowance: protocol.Allowance, used: int) -> int:
    """Return the bytes that the quota and the device's size leave to a session that uses *used*."""
    return most_allowed(allowance) - used
