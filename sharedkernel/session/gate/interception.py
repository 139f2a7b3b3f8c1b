"""The time for which the main thread's dispatch mode is in: until a grant is held, and as long as something needs it.

What looks at dispatch itself, an *onlooker* such as a tracer or a profiler (:mod:`.onlookers`), keeps the mode out.
Other threads have modes of their own (:mod:`.user_threads`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sharedkernel.session.gate.dispatch_mode import DeviceMode, OperationFilter
from sharedkernel.session.gate.passage import Passage
from sharedkernel.session.gate.standing import Standing
from sharedkernel.session.gate.table import Look
from sharedkernel.session.gate.torch_internals import is_transform_under_way
from sharedkernel.session.memory.growth import Growth
from sharedkernel.session.progress.forecast import Forecast
from sharedkernel.system.deferred_signals import signals_held

#: seconds from a boundary to the next operation within which a session counts as prompt
PROMPT = 0.002
#: times after which it is looked at again whether it still is
_LOOK_AFTER = 16


class Interception:
    """Decides whether one session's operations are intercepted.

    Parameters
    ----------
    standing, growth, forecast, passage
        Of the session.
    before_operation
        Called before each intercepted operation; may block, and may raise.
    after_failure
        Called with an operation that failed and its error; returns whether to run it again. May block and raise as
        well.
    concerns
        Recognises the device's operations by their arguments; None: all are.
    """

    def __init__(
        self,
        standing: Standing,
        growth: Growth,
        forecast: Forecast,
        passage: Passage,
        *,
        before_operation: Callable[[], None],
        after_failure: Callable[[Any, BaseException], bool],
        concerns: OperationFilter | None,
    ) -> None:
        self._standing = standing
        self._growth = growth
        self._forecast = forecast
        self._passage = passage
        self._main = threading.get_ident()
        #: of the main thread
        self.mode = DeviceMode(
            before_operation, after_failure, concerns=concerns, may_leave=self._may_leave, left=self._operation_left
        )
        #: what looks at dispatch now, by numbers, and the firmest of it
        self._onlookers: dict[int, Look] = {}
        self.look = Look.NONE
        #: the code wanted the device soon after the last boundary where it was given back
        self._is_prompt = False
        #: when it was given back, if nothing has been wanted since; else 0
        self._left_at = 0.0
        self._times_left = 0

    def _operation_left(self) -> None:
        # where the mode leaves, nothing stops the main thread's next operation
        if not self.mode.is_leaving or threading.get_ident() != self._main:
            self._passage.leave()

    def look_began(self, onlooker: int, *, is_firm: bool) -> None:
        """Keep the mode out for *onlooker*, which bears no yield in its middle if *is_firm*."""
        self._onlookers[onlooker] = Look.FIRM if is_firm else Look.SOFT
        self.look = max(self._onlookers.values())

    def look_ended(self, onlooker: int) -> None:
        """Let the mode come in again, unless others look on."""
        self._onlookers.pop(onlooker, None)
        self.look = max(self._onlookers.values(), default=Look.NONE)

    def _may_leave(self) -> bool:
        """Whether the mode may be taken out, with the grant held: nothing needs it."""
        return bool(self.look) or self._growth.may_leave

    def take_out(self) -> None:
        """Take the mode out, in the main thread, if the grant is held and nothing needs it."""
        if self.mode.is_in and self._may_leave() and not is_transform_under_way():
            with signals_held():
                # a force signal may have ended it meanwhile
                was_inside = self._passage.is_main_inside
                is_open = self._passage.enter()
                if not (is_open and self._standing.is_held and self.mode.take_out()) and not was_inside:
                    self._passage.leave()

    # --- where a session waits that has given the device back at a boundary -------------------------------------------

    def device_left(self) -> bool:
        """Handle a boundary where the device was given back; return whether to wait for it there, with the mode out.

        Otherwise the next operation waits. Code that goes on with an operation at once loses nothing if it waits at the
        boundary, and the mode need not come in to notice that operation, nor leave it when every microsecond counts.
        Code that does something else first, such as loading data, does that while others have the device.
        """
        self._times_left += 1
        if self._is_prompt and self._times_left % _LOOK_AFTER and not self._forecast.is_at_end:
            self.mode.take_out()
            return True
        self._left_at = time.monotonic()
        return False

    def device_wanted(self) -> None:
        """Handle an operation that needs the device, which the session has not."""
        if self._left_at and threading.get_ident() == self._main:
            self._is_prompt = time.monotonic() < self._left_at + PROMPT
            self._left_at = 0.0

    def code_changed(self) -> None:
        """Prepare for other code than before."""
        self._is_prompt, self._left_at = False, 0.0
