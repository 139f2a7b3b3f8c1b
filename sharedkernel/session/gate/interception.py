"""When the main thread's dispatch mode is in: until a grant is held, and as long as something needs it.

What looks at dispatch itself, an *onlooker* such as a tracer or a profiler (:mod:`.onlookers`), keeps the mode out.
Threads of subshells have modes of their own, which stay in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sharedkernel.session.gate.dispatch_mode import DeviceMode, OperationFilter
from sharedkernel.session.gate.grant import GatePart, GateParts, HeldGrant
from sharedkernel.session.gate.torch_internals import is_transform_under_way
from sharedkernel.system.deferred_signals import signals_held


class Interception(GatePart):
    """Decides whether one session's operations are intercepted.

    Parameters
    ----------
    parts
        What the gate works with.
    grant
        The session's.
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
        parts: GateParts,
        grant: HeldGrant,
        *,
        before_operation: Callable[[], None],
        after_failure: Callable[[Any, BaseException], bool],
        concerns: OperationFilter | None,
    ) -> None:
        super().__init__(parts)
        self._grant = grant
        self._before_operation = before_operation
        self._concerns = concerns
        self._main = threading.get_ident()
        self._modes = threading.local()
        #: of the main thread
        self.mode = DeviceMode(
            before_operation, after_failure, parts.forecast.cost.count, concerns=concerns, may_leave=self._may_leave
        )
        #: numbers of what looks at dispatch now, and of those that bear no yield in their middle
        self.onlookers: set[int] = set()
        self.firm_onlookers: set[int] = set()

    def guard_thread(self) -> None:
        """Let every operation of the calling thread, not the main one, pass the gate from now on."""
        if threading.get_ident() != self._main and not hasattr(self._modes, "mode"):
            self._modes.mode = DeviceMode(self._before_operation, concerns=self._concerns)
            self._modes.mode.put_in()

    def _may_leave(self) -> bool:
        """Whether the mode may be taken out, with the grant held: nothing needs it."""
        return bool(self.onlookers) or (not self._forecast.cost.is_counting and self._growth.may_leave)

    def take_out(self) -> None:
        """Take the mode out, in the main thread, if the grant is held and nothing needs it."""
        if self.mode.is_in and self._may_leave() and not is_transform_under_way():
            with signals_held():
                if self._grant.is_held and self.mode.take_out():  # a force signal may have ended the grant meanwhile
                    self._forecast.cost.mode_left()
