"""Which machine this is, for two programs that ask whether they see the same files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from pathlib import Path


def machine_digest() -> str:
    """Return a digest of the machine, or of the container, that this program runs in: 64 hexadecimal digits.

    It tells nothing of the machine. Two programs that have the same one have the same kernel, name and root folder; so
    programs in two containers of one machine differ.
    """
    parts = [platform.node()]
    with contextlib.suppress(OSError):  # no Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with contextlib.suppress(OSError):
        root = os.stat("/")
        parts.append(f"{root.st_dev}:{root.st_ino}")
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
