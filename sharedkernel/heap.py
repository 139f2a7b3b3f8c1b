"""Memory that was freed, given back to the operating system.

The C library's allocator keeps what is freed among what is still used, so a service that ran through a busy hour stays
as large as it was then, and looks as if it leaked (ARCHITECTURE.md, "Found by measuring").
"""

from __future__ import annotations

import asyncio
import ctypes

#: seconds from one time to the next
_INTERVAL = 60.0


def trim() -> None:
    """Give free memory inside the heap back, too, not only at its end; nothing where the C library has no such call."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(ctypes.c_size_t(0))


async def keep_trimmed(interval: float = _INTERVAL) -> None:
    """Trim the heap every *interval* seconds, until cancelled."""
    while True:
        await asyncio.sleep(interval)
        trim()
