"""A bound on how far a session's code runs ahead of its GPU: to the boundary after the one that the device has come to.

CUDA takes thousands of launches before any has run. A session that is asked for the device has to wait until all that
it has queued is done, and others wait for it meanwhile. With one event at each boundary what is queued is bounded by
the work of two iterations.
"""

from __future__ import annotations

import contextlib
from typing import Any

from sharedkernel.session.memory.torch_cuda import DEVICE


class RunAhead:
    """Bounds the work that one session's main thread has queued.

    Parameters
    ----------
    cuda
        The module `torch.cuda`, or what stands in for it.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        #: events by turns: the one recorded last, and the one before that
        self._last: Any = None
        self._spare: Any = None

    def boundary_passed(self) -> None:
        """Wait until the device has come to the boundary before this one.

        Errors of what ran on the device are left to the user's next operation, which raises them.
        """
        if not self._cuda.is_initialized() or self._cuda.is_current_stream_capturing():
            return
        with contextlib.suppress(RuntimeError):
            event, before = self._spare or self._cuda.Event(), self._last
            event.record(self._cuda.current_stream(DEVICE))
            self._last, self._spare = event, before
            if before is not None:
                before.synchronize()
