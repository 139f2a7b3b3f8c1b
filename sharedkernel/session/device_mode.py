"""Notice the first device operation: a dispatch mode that sits below everything while no grant is held.

It lies at the bottom of the thread's stack of modes, so that modes of the user's own (whether entered before or after
it) see every operation first and find their own mode on top when they leave. It cannot take itself out while it
handles an operation, since it is off the stack there and put back after; whoever holds the gate takes it out at the
next hook (:mod:`~sharedkernel.session.boundaries`). Operations cost 7 to 10 µs more while it is in.

Modes are per thread: operations in threads that the user starts are not noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

#: how often an operation is done again that failed and might succeed now
MOST_RETRIES = 2


class DeviceMode(TorchDispatchMode):
    """Calls *before_operation* ahead of each operation of the thread it is in.

    Parameters
    ----------
    before_operation
        May block, and may raise: then the operation fails with that error.
    concerns
        Tells the device's operations by their arguments; None: all are.
    after_failure
        Called with an operation and the error that it failed with; whether to do it again. May block and raise as well.
    after_operation
        Called with each operation that was run, its arguments, keywords and result.
    """

    def __init__(
        self,
        before_operation: Callable[[], None],
        after_failure: Callable[[Any, BaseException], bool] = lambda operation, error: False,
        after_operation: Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None] | None = None,
        *,
        concerns: Callable[[Sequence[Any], Mapping[str, Any]], bool] | None = None,
    ) -> None:
        super().__init__()
        self._before_operation = before_operation
        self._after_failure = after_failure
        self._after_operation = after_operation
        self._concerns = concerns
        #: in this thread's stack, as far as put in and taken out here
        self.is_in = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Skipping wraps the handler in torch._dynamo, whose import costs a second at the first operation.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` work as if this mode were not there."""
        return True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run *func* once the gate is passed."""
        keywords = kwargs or {}
        if self._concerns is not None and not self._concerns(args, keywords):
            return func(*args, **keywords)
        self._before_operation()
        result = self._run(func, args, keywords)
        if self._after_operation is not None:
            self._after_operation(func, args, keywords, result)
        return result

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
        above = _take_off(0)
        _push_mode(self)
        _put_back(above)
        self.is_in = True

    def take_out(self) -> bool:
        """Take this mode out from below the others; False if it is not there (such as inside its own handler)."""
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
