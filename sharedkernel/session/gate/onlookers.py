"""Keep the dispatch mode away from those who look at dispatch themselves.

`torch.jit.trace` (and so ONNX export by tracing), `torch.compile`, `torch.export` and `torch.profiler` would see the
mode, and some would fail by it. So the device is acquired where they begin instead of at the first operation in them,
and the mode stays out until they end (:meth:`~sharedkernel.session.gate.gate.Gate.look_begins`). What `torch.compile`
makes may use the device without any operation that is dispatched, so it needs the grant beforehand in any case.

The profiler bears a yield in its middle: the mode then returns for one operation. Tracing and compiled code do not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch.autograd.profiler
import torch.export
import torch.jit
from torch._dynamo import eval_frame

from sharedkernel.session.gate.gate import Gate

_numbers = itertools.count(1)


def install(gate: Gate) -> None:
    """Have *gate* told of onlookers, for the life of the process."""
    for name in ("_trace_impl", "trace_module", "_get_trace_graph"):
        _watch_calls(gate, torch.jit._trace, name)
        if hasattr(torch.jit, name):
            setattr(torch.jit, name, getattr(torch.jit._trace, name))
    _watch_calls(gate, torch.export, "export")
    _watch_profiler(gate)
    _watch_compiled(gate)


def _watch_calls(gate: Gate, module: Any, name: str) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        number = next(_numbers)
        gate.look_begins(number, is_firm=True)
        try:
            return original(*args, **kwargs)
        finally:
            gate.look_ends(number)

    setattr(module, name, watched)


def _watch_profiler(gate: Gate) -> None:
    kind = torch.autograd.profiler.profile
    start, end = kind._start_trace, kind.__exit__

    @functools.wraps(start)
    def started(self: Any) -> Any:
        gate.look_begins(-id(self), is_firm=False)
        return start(self)

    @functools.wraps(end)
    def ended(self: Any, *exception: Any) -> Any:
        try:
            return end(self, *exception)
        finally:
            gate.look_ends(-id(self))

    kind._start_trace = started  # type: ignore[method-assign]
    kind.__exit__ = ended  # type: ignore[method-assign]


def _watch_compiled(gate: Gate) -> None:
    kind = eval_frame.OptimizeContext
    original = kind.__init__

    def called() -> Callable[[], None]:
        number = next(_numbers)
        gate.look_begins(number, is_firm=True)
        return functools.partial(gate.look_ends, number)

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.enter_exit_hooks.append(called)

    kind.__init__ = made  # type: ignore[method-assign]
