"""Keep Dynamo, the front end of `torch.compile`, out of the session's own functions.

After a graph break Dynamo compiles whatever Python function runs next, handlers and hooks included: its limits and
counters would show them, and its guards would depend on the gate's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

F = TypeVar("F", bound=Callable[..., Any])

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def uncompiled(function: F) -> F:
    """Return *function*, a Python function, which Dynamo compiles no more; nor does it compile what that calls.

    What `torch.compiler.disable` returns is another function, with frames of torch's around this one, and costs 2 µs.
    """
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return function
