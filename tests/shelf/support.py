"""Values through memory and back, without an executor."""

from __future__ import annotations

import mmap
import os
from typing import Any

from sharedkernel.shelf import layout, memory
from sharedkernel.shelf.planning import plan


def written(value: Any) -> mmap.mmap:
    """Return memory with *value* in it, mapped."""
    descriptor = memory.write(plan(value))
    try:
        return memory.map_shared(descriptor)
    finally:
        os.close(descriptor)


def round_trip(value: Any, *, private: bool = False) -> Any:
    """Write *value* and read it again."""
    return layout.read(written(value), private=private)
