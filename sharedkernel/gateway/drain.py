"""Stopping a gateway without cutting anybody off: it takes no new sessions, waits for the cells that run, and ends.

Sessions stay with their executors, so what takes too long is not lost either: it runs on, and its outputs come with the
next gateway. How one is asked to, `presence.py` knows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from sharedkernel.gateway.kernels.kernel import SessionKernel
    from sharedkernel.gateway.kernels.manager import SessionKernels

#: seconds between looks at what still runs
_INTERVAL = 0.1


async def until_cells_end(manager: SessionKernels, seconds: float) -> list[str]:
    """Wait until every kernel that is busy now has been idle, or is another process or gone, or *seconds* are over.

    Parameters
    ----------
    manager
        Knows the kernels; they may change meanwhile.
    seconds
        0: for ever.

    Returns
    -------
    The ids of those whose cells still run.
    """
    running = {name: kernel.incarnation for name, kernel in _busy(manager).items()}
    deadline = asyncio.get_running_loop().time() + seconds
    while running and (not seconds or asyncio.get_running_loop().time() < deadline):
        await asyncio.sleep(_INTERVAL)
        busy = _busy(manager)
        for name, incarnation in list(running.items()):
            if name not in busy or busy[name].incarnation != incarnation:
                del running[name]
    return list(running)


def _busy(manager: SessionKernels) -> dict[str, SessionKernel]:
    kernels = {name: cast("SessionKernel", manager.get_kernel(name)) for name in manager.list_kernel_ids()}
    return {name: kernel for name, kernel in kernels.items() if kernel.execution_state == "busy"}
