"""Freed memory goes back to the system, also from between what is still used."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: what this one's heap looks like depends on the tests before.
_BUSY_HOUR = """
import asyncio, contextlib, re
from pathlib import Path
from sharedkernel import heap

def own():
    return 1024 * int(re.search(r"^Anonymous:\\s+(\\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)[1])

async def quiet_minute():
    trimming = asyncio.create_task(heap.keep_trimmed(0.01))
    await asyncio.sleep(0.1)
    trimming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await trimming

before = own()
messages = [bytes(5000) for _ in range(20_000)]
kept = messages[::100] + messages[-1:]
del messages
busy = own()
asyncio.run(quiet_minute())
print(busy - before, own() - before)
"""


def test_what_a_busy_hour_took_is_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", _BUSY_HOUR], check=True, capture_output=True, text=True).stdout
    busy, quiet = map(int, said.split())
    assert busy > 80e6  # nothing goes back by itself: something after it is still used
    assert quiet < 10e6
