"""A small file system, for tests of what runs out of room."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(directory: Path) -> Iterator[Path]:
    """Have a file system of 4 MiB in a directory; the test is skipped where none can be mounted."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system")
    options = ["-t", "tmpfs", "-o", "size=4m,mode=0700"]
    mounted = subprocess.run(["mount", *options, "none", str(directory)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Leave no room in a file system; return the file to remove for it."""
    path = directory / "filling"
    try:
        with path.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError:
        return path
    raise AssertionError("it never got full")
