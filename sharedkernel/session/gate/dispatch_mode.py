"""The dispatch mode that intercepts the first device operation while no grant is held.

It lies at the bottom of the thread's mode stack, so the user's own modes see every operation first and find their own
mode on top when they leave. torch takes a mode off the stack while its handler runs and puts it back afterwards, so a
mode cannot remove itself there. It asks for its removal instead: when the handler's frame is freed, a C function raises
:data:`~sharedkernel.ipc.shared_page.FORCE_SIGNAL`, whose Python handler runs between the next two bytecodes of the
user's code. So a mode that nobody needs is gone after one operation, and the operations after it cost what they cost in
a stock kernel. An operation costs 5 to 15 µs more while the mode is in.

The main thread's is in until a grant is held, and as long as something needs it (:class:`Interception`). What looks at
dispatch itself, an *onlooker* such as a tracer or a profiler (:mod:`.onlookers`), keeps it out. Modes are per thread.
Those of other threads stay in (:mod:`.user_threads`): signals reach only the main one.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from sharedkernel.ipc.shared_page import FORCE_SIGNAL
from sharedkernel.session.gate.passage import Passage
from sharedkernel.session.gate.standing import Standing
from sharedkernel.session.gate.table import Look
from sharedkernel.session.gate.torch_internals import is_transform_under_way, uncompiled, without_ours
from sharedkernel.session.memory.growth import Growth
from sharedkernel.session.progress.progress import Forecast
from sharedkernel.system.deferred_signals import FrameEnd, raise_after, signals_held

#: returns whether an operation with these arguments and keywords is the device's
OperationFilter = Callable[[Sequence[Any], Mapping[str, Any]], bool]

#: how often an operation is done again that failed and might succeed now
MOST_RETRIES = 2


class DeviceMode(TorchDispatchMode):
    """Call *before_operation* before each operation of its thread.

    Parameters
    ----------
    before_operation
        May block, and may raise: then the operation fails with that error.
    concerns
        Recognises the device's operations by their arguments; None: all are.
    after_failure
        Called with an operation and the error that it failed with; whether to do it again. May block and raise as well.
    may_leave
        Return whether the mode is not needed after this operation. Then FORCE_SIGNAL is raised as soon as the mode can
        be taken out; the handler of that signal has to do so.
    left
        Called after an operation, and when the mode is put in: the next operation passes *before_operation* again, but
        for one after which the mode leaves.
    """

    def __init__(
        self,
        before_operation: Callable[[], None],
        after_failure: Callable[[Any, BaseException], bool] = lambda operation, error: False,
        *,
        concerns: OperationFilter | None = None,
        may_leave: Callable[[], bool] = lambda: False,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._before_operation = before_operation
        self._after_failure = after_failure
        self._concerns = concerns
        self._may_leave = may_leave
        self._left = left
        self._frame_end: weakref.ref[FrameEnd] | None = None
        #: the next signal comes from here; reset by its handler
        self.is_leaving = False
        #: in this thread's stack, as far as put in and taken out here
        self.is_in = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The handler is uncompiled all the same. torch's wrapper would be a Python frame around it, in which the signal
        # is handled too early.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` work as if this mode were not there."""
        return True

    @uncompiled
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run *func* once the gate is passed."""
        __tracebackhide__ = True
        keywords = kwargs or {}
        if self._concerns is not None and not self._concerns(args, keywords):
            return func(*args, **keywords)
        try:
            self._before_operation()
            if self._may_leave():
                frame_end = FrameEnd()
                self._frame_end = raise_after(frame_end, FORCE_SIGNAL)
                self.is_leaving = True
            return self._run(func, args, keywords)
        except BaseException as error:
            error.__traceback__ = without_ours(error.__traceback__)
            del args, kwargs, keywords  # a frame that stays in the traceback may have been called from here
            raise
        finally:
            self._left()

    def _run(self, func: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        for _ in range(MOST_RETRIES):
            try:
                return func(*args, **keywords)
            except (RuntimeError, MemoryError) as error:
                if not self._after_failure(func, error):
                    raise
        return func(*args, **keywords)

    def put_in(self) -> None:
        """Put this mode below all others of the calling thread."""
        with signals_held():  # a signal's handler may change the stack, too
            if not self.is_in:
                above = _take_off(0)
                _push_mode(self)
                _put_back(above)
                self.is_in = True
                self._left()

    def take_out(self) -> bool:
        """Take this mode out from below the others; False if it is not there (such as inside its own handler)."""
        with signals_held():
            stack = _get_current_dispatch_mode_stack()
            if self not in stack:
                return False
            above = _take_off(stack.index(self) + 1)
            _pop_mode()
            _put_back(above)
            self.is_in = False
            return True


def _take_off(keep: int) -> list[TorchDispatchMode]:
    """Take all modes above the lowest *keep* off the stack, topmost first."""
    return [_pop_mode(getattr(mode, "_mode_key", None)) for mode in reversed(_get_current_dispatch_mode_stack()[keep:])]


def _put_back(modes: list[TorchDispatchMode]) -> None:
    for mode in reversed(modes):
        _push_mode(mode)


def touches_cuda(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Return whether an operation with these arguments uses the GPU: it has a tensor there, or makes one.

    Parameters
    ----------
    arguments, keywords
        As a dispatch mode gets them. Of lists (as `torch.cat` and fused optimizers have) every element counts.
    """
    is_made_there = getattr(keywords.get("device"), "type", None) == "cuda"
    return is_made_there or any(map(_is_on_gpu, arguments)) or any(map(_is_on_gpu, keywords.values()))


def _is_on_gpu(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_on_gpu, value))
    return bool(getattr(value, "is_cuda", False))


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
                was_inside = self._main in self._passage.inside
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
