"""Values through files and back, without an executor."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

from sharedkernel.paths import SHELF_DIRECTORY
from sharedkernel.shelf import layout, memory
from sharedkernel.shelf.memory import plan


def written(value: Any) -> mmap.mmap:
    """Return a file with *value* in it, mapped; it goes with the mapping."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, SHELF_DIRECTORY, "value.safetensors")
        path.parent.mkdir()
        planned = plan(value)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(descriptor, 0, planned.size)
            memory.write(planned, descriptor)
            return memory.map_shared(descriptor)
        finally:
            os.close(descriptor)


def round_trip(value: Any, *, private: bool = False) -> Any:
    """Write *value* and read it again."""
    return layout.read(written(value), private=private)
