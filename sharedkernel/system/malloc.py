"""Memory that is no longer used, given back to the operating system.

Ended sessions and closed websockets leave rings of objects behind (Jupyter's and tornado's as well as our own), which
Python looks for only when a quarter more objects are there than after its last look: the more sessions, the later. And
the C library's allocator keeps what is freed among what is still used. So a service stays as large as its busiest hour
(docs/decisions/2026-11-22-memory-of-a-gateway.md).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc

#: seconds from one time to the next
_INTERVAL = 300.0


def trim() -> None:
    """Give free memory inside the heap back, too, not only at its end; nothing where the C library has no such call."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(ctypes.c_size_t(0))


async def keep_trimmed(interval: float = _INTERVAL) -> None:
    """Free what nobody can reach any more and give it back, every *interval* seconds, until cancelled.

    Called when a service is up: what is there by then stays for good, and is not looked at again.
    """
    gc.collect()
    gc.freeze()
    while True:
        await asyncio.sleep(interval)
        gc.collect()
        trim()
