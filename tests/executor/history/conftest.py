"""A small file system for the tests of files that run out of room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on a file system of 4 MiB; skipped where none can be mounted."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system")
    options = ["-t", "tmpfs", "-o", "size=4m"]
    mounted = subprocess.run(["mount", *options, "none", str(tmp_path)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


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
