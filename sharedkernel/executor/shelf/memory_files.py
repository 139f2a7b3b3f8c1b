"""The memory files that shelves hold: their size, which is sealed, and whether any process still uses them.

Each descriptor that is lent is an opening of its own of the file, with a shared lock on it. The lock ends with the last
mapping, in whichever process, however that process ends; the file is free once an exclusive lock can be had.
"""

from __future__ import annotations

import fcntl
import os

from sharedkernel.errors import Refused

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def size_of(descriptor: int) -> int:
    """Return the bytes that a memory file takes at most."""
    return -(-os.fstat(descriptor).st_size // _PAGE_BYTES) * _PAGE_BYTES


def sealed_size(descriptors: list[int]) -> int:
    """Return the size of the one memory file that came, in bytes; only a sealed size is a figure to charge.

    Raises
    ------
    Refused
        When it is not one memory file of sealed size.
    """
    try:
        (descriptor,) = descriptors
        is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except (ValueError, OSError):
        is_sealed = False
    if not is_sealed:
        text = "what is shelved has to be one memory file of sealed size; nothing was changed."
        raise Refused(text, reason="memory_file")
    return size_of(descriptor)


def _reopen(descriptor: int) -> int:
    """Return a descriptor of the same file with locks of its own."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def lend(descriptor: int) -> int:
    """Return a descriptor to give away, by which it is seen how long the memory is used."""
    lent = _reopen(descriptor)
    fcntl.flock(lent, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return lent


def is_in_use(descriptor: int) -> bool:
    """Whether any process still has what it was lent."""
    probe = _reopen(descriptor)
    try:
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(probe)
    return False
