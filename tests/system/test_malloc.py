"""What is no longer used goes back to the system, from between what is and also where it refers to itself."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: what this one's heap looks like depends on the tests before.
_BUSY_HOUR = """
import asyncio, contextlib, gc, re, time
from pathlib import Path
from sharedkernel.system import malloc

class Message:
    def __init__(self):
        self.content = bytes(5000)
        self.itself = self

def own():
    return 1024 * int(re.search(r"^Anonymous:\\s+(\\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)[1])

async def serve():
    trimming = asyncio.create_task(malloc.keep_trimmed(0.3))
    await asyncio.sleep(0)  # what is there by now stays
    before = own()
    messages = [Message() for _ in range(20_000)]
    kept = messages[::100] + messages[-1:]
    del messages
    busy = own()
    patient_until = time.monotonic() + 60
    while own() - before >= 10e6 and time.monotonic() < patient_until:
        await asyncio.sleep(0.3)
    print(busy - before, own() - before)
    trimming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await trimming

gc.set_threshold(100_000)  # as if there were many more objects
asyncio.run(serve())
"""


def test_what_a_busy_hour_took_is_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", _BUSY_HOUR], check=True, capture_output=True, text=True).stdout
    busy, quiet = map(int, said.split())
    assert busy > 80e6  # nothing goes back by itself: something after it is still used
    assert quiet < 10e6
