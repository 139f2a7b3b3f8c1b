"""The shared page between one session and its executor, for what passes without a message, and a signal.

The executor writes the words *preempt*, *summoned* and *interrupts*; the session writes the rest. A word is read and
written in one machine instruction, so neither side locks. What the session writes is its own word about itself: it
counts within what the executor knows (`executor/processes/sanitize.py`), and decides nothing about another session.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
from enum import IntEnum

#: asks a session's main thread to give the device back now. Ignored by default, so harmless to who does not expect it
FORCE_SIGNAL = signal.SIGURG

_MAGIC = 0x53484B31  # "SHK1": changes with the layout
_SIZE = mmap.PAGESIZE
#: with these its size stays, so that nobody who reads it is ended by SIGBUS, and it stays writable for the executor
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Word(IntEnum):
    """Places in the page, in words of eight bytes.

    A new word gets the next number and is 0 for sessions that do not know it. Numbers that are free were others' once:
    sessions of earlier versions may still write them.
    """

    MAGIC = 0
    #: not 0: release the grant at the next boundary (executor)
    PREEMPT = 1
    #: boundaries passed while holding a grant
    ITERATIONS = 2
    #: a :class:`Turn`
    TURN = 3
    #: bytes that stay between iterations
    PERSISTENT = 4
    #: bytes in use right now beyond the persistent ones
    LIVE = 5
    #: bytes this process holds apart from tensors
    FRAMEWORK = 7
    #: device memory that torch's allocator holds, with what it keeps for the next tensors (CUDA)
    RESERVED = 8
    #: not 0: come to the gate although the device is not wanted, so that memory can be offloaded (executor; the session
    #: sets it back)
    SUMMONED = 9
    #: not 0: it takes what lives out of its lane, for which it waits for the device; then the grant goes
    HANDING_OVER = 10
    #: interrupts sent so far (executor): where Python cannot handle them, they are known by this
    INTERRUPTS = 11
    #: threads of the user's in which it computes, beside its cells
    THREADS = 12


class Turn(IntEnum):
    """The session's state with the device, as it sees it itself."""

    IDLE = 0
    READY = 1
    WANTING = 2
    HOLDING = 3
    #: it is none any more: its kernel has ended, or this is a forked child. Never in the page
    DISABLED = 4


def is_page(descriptor: int) -> bool:
    """Whether a file can be a shared page: a name says nothing, since a session can give its own files any."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == _SEALS and os.fstat(descriptor).st_size == _SIZE
    except OSError:  # no memory file
        return False


class Page:
    """A mapping of one shared page.

    Parameters
    ----------
    descriptor
        Of the memory file; stays open, and open in no program that this process starts.

    Raises
    ------
    ValueError
        When it is no page that a session and its executor share; it is closed then.
    OSError
        When it cannot be mapped, which takes another descriptor; it is closed then.
    """

    def __init__(self, descriptor: int) -> None:
        if not is_page(descriptor):
            os.close(descriptor)
            raise ValueError("not a session's page, or one whose size is not sealed")
        self.descriptor = descriptor
        try:
            self._map = mmap.mmap(descriptor, _SIZE)
        except OSError:
            os.close(descriptor)
            raise
        self._view = memoryview(self._map)
        #: the words, by :class:`Word`; indexing it costs tens of nanoseconds
        self.words = self._view.cast("q")
        if self.words[Word.MAGIC] != _MAGIC:
            self.close()
            raise ValueError("not a session's page, or one of another version")

    @classmethod
    def create(cls, name: str) -> Page:
        """Make a new page, named *name* in `/proc/PID/maps`."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _SIZE)
        os.pwrite(descriptor, _MAGIC.to_bytes(8, "little"), 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return cls(descriptor)

    def close(self) -> None:
        """Unmap and close."""
        self.words.release()
        self._view.release()
        self._map.close()
        os.close(self.descriptor)
