"""Offload and restore page by page, at unchanged addresses: no tensor notices, and none has to be found.

The bytes go through two staging buffers: while one is copied from the device, threads write the other to the backing
store, and the other way round: one thread alone, which meets a page fault at every new page, is slower than the bus.
Offloading first copies everything and only then unmaps; restoring first maps and copies and only then counts as done.
So what fails or is interrupted half-way leaves the memory as it was: on the device, or away.

Pages in which nothing lives are not copied; they come back as new, empty ones, since torch may use them again.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.driver import MIB, DeviceMemoryError, HostBuffer
from sharedkernel.device_memory.layout import GivenUnit
from sharedkernel.device_memory.mapper import Slot, SlotState
from sharedkernel.device_memory.ranges import LiveRanges
from sharedkernel.system.deferred_signals import signals_held


class BackingStoreFull(DeviceMemoryError):
    """There is no room to keep what was to be offloaded; it stays on the device."""


class BackingStore:
    """Host memory, taken as it is written; several threads may use it at a time, each for other bytes.

    Most of the time of a first write goes to page faults, so the pages are huge where the kernel has such. Other
    threads run meanwhile: a slice of a memoryview would be copied with the interpreter's lock held.

    Parameters
    ----------
    size
        Bytes it can hold.
    """

    def __init__(self, size: int) -> None:
        try:
            memory = mmap.mmap(-1, max(size, 1))
        except OSError as error:
            raise BackingStoreFull(f"{size} bytes of host memory cannot be had: {error.strerror}.") from error
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(memory)

    def write(self, offset: int, data: memoryview) -> None:
        """Keep bytes."""
        _copy(self._view[offset : offset + data.nbytes], data)

    def read(self, offset: int, into: memoryview) -> None:
        """Return bytes that were kept."""
        _copy(into, self._view[offset : offset + into.nbytes])

    def close(self) -> None:
        """Forget them."""
        self._view.release()


def _copy(target: memoryview, source: memoryview) -> None:
    """Copy the bytes of one writable memory to another of the same size, without the interpreter's lock."""
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes cannot be copied to {target.nbytes}.")
    if source.nbytes:
        first, second = ctypes.c_char.from_buffer(target), ctypes.c_char.from_buffer(source)
        ctypes.memmove(ctypes.byref(first), ctypes.byref(second), source.nbytes)


#: bytes of each of the two staging buffers
STAGING = 64 * MIB

#: threads that copy between a staging buffer and the backing store, and bytes that are worth one more of them
_COPIERS, _WORTH_A_THREAD = min(16, os.cpu_count() or 1), 2 * MIB

#: a stretch of a slot: address, offset in the backing store, bytes
_Piece = tuple[int, int, int]


def bytes_to_keep(arena: Arena, live: LiveRanges) -> int:
    """Return how large a backing store has to be."""
    return sum(slot.size for slot in arena.slots(SlotState.PRIVATE) if live.touches(slot.address, slot.size))


def copy_out(
    arena: Arena, live: LiveRanges, backing: BackingStore, is_stopped: Callable[[], bool] = lambda: False
) -> dict[Slot, int | None]:
    """Copy all private memory to a backing store (any thread).

    Parameters
    ----------
    arena
        Whose slots; nothing of this process may be at work on the device, or start to be, until they are sent away.
    live
        Where blocks live.
    backing
        Takes :func:`bytes_to_keep`.
    is_stopped
        Asked between two pieces: whether to end early, the copy being of no use any more.

    Returns
    -------
    dict
        What :meth:`Arena.send_away` takes.

    Raises
    ------
    BackingStoreFull, DeviceMemoryError, KeyboardInterrupt
        Everything is where it was, as it is otherwise.
    """
    arena.driver.synchronize()
    offsets: dict[Slot, int | None] = {}
    end = 0
    for slot in arena.slots(SlotState.PRIVATE):
        is_live = live.touches(slot.address, slot.size)
        offsets[slot] = end if is_live else None
        end += slot.size if is_live else 0

    pieces = list(_pieces(offsets.items()))
    with _staging(arena) as (helper, buffers):
        writing: list[list[Future[None]]] = [[], []]
        for number, (address, offset, size) in enumerate(pieces):
            if is_stopped():
                break
            _finish(writing[number % 2])
            buffer = buffers[number % 2][:size]
            arena.driver.read(buffer, address)
            writing[number % 2] = _start(helper, backing.write, offset, buffer)
        for last in writing:
            _finish(last)
    return offsets


def sizes_away(arena: Arena) -> list[int]:
    """Return the sizes of the units that :func:`restore` needs."""
    return [slot.size for slot in arena.slots(SlotState.AWAY)]


def restore(arena: Arena, given: Sequence[GivenUnit], backing: BackingStore) -> None:
    """Bring everything back to where it was.

    Parameters
    ----------
    arena
        Whose slots.
    given
        Units of :func:`sizes_away`, in that order. If this raises, they are released again.
    backing
        Has the bytes; it is not closed.

    Raises
    ------
    DeviceMemoryError, KeyboardInterrupt
        Everything is still away. Interrupted at the very end it may be back instead; :func:`sizes_away` tells.
    """
    slots = arena.slots(SlotState.AWAY)
    with arena.bringing_back(slots, given):
        if not arena.driver.is_new_memory_clean:
            for slot in slots:
                if slot.offset is None:
                    arena.driver.fill(slot.address, slot.size, 0)

        pieces = list(_pieces((slot, slot.offset) for slot in slots))
        with _staging(arena) as (helper, buffers):

            def read(number: int) -> list[Future[None]]:
                _, offset, size = pieces[number]
                return _start(helper, backing.read, offset, buffers[number % 2][:size])

            reading = [read(number) for number in range(min(2, len(pieces)))]
            for number, (address, _, size) in enumerate(pieces):
                _finish(reading[number % 2])
                arena.driver.write(address, buffers[number % 2][:size])
                if number + 2 < len(pieces):
                    reading[number % 2] = read(number + 2)


class ArenaOffload:
    """Memory on its way off the device: first :meth:`write`, in any thread, then :meth:`commit` or :meth:`abort`."""

    def __init__(self, residency: ArenaResidency, arena: Arena, live: LiveRanges, backing: BackingStore) -> None:
        self._residency = residency
        self._arena = arena
        self._live = live
        self._backing = backing
        self._offsets: dict[Slot, int | None] = {}
        #: bytes that will be free
        self.size = arena.private_bytes

    def write(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Copy everything to the backing store; see :func:`copy_out`."""
        self._offsets = copy_out(self._arena, self._live, self._backing, is_stopped)

    def commit(self) -> int:
        """Free the memory, none of which was changed since this began; return the bytes that this freed."""
        self._residency.begin(self._offsets, self._backing)
        return sum(slot.size for slot in self._offsets)

    def abort(self) -> None:
        """Forget the copy; the memory was never gone."""
        self._backing.close()


class ArenaResidency:
    """Whether a session's private memory is away, and where.

    Parameters
    ----------
    arena
        The session's.
    lock
        Covers it.
    """

    def __init__(self, arena: Arena, lock: AbstractContextManager[Any]) -> None:
        self._arena = arena
        self._lock = lock
        self._backing: BackingStore | None = None

    @property
    def is_away(self) -> bool:
        """Whether it is."""
        return self._backing is not None

    def prepare(self, live: LiveRanges, make_backing: Callable[[int], BackingStore]) -> ArenaOffload:
        """Make a backing store for what lives, and return what moves it there."""
        return ArenaOffload(self, self._arena, live, make_backing(bytes_to_keep(self._arena, live)))

    def begin(self, offsets: dict[Slot, int | None], backing: BackingStore) -> None:
        """Free what was copied to *backing*, which is closed if nothing is."""
        try:
            with self._lock:
                self._arena.send_away(offsets)
        finally:
            # an interrupt may come as the last step is done: the page table tells what holds
            if sizes_away(self._arena):
                self._backing = backing
            else:
                backing.close()

    def restore(self, given: Sequence[GivenUnit]) -> None:
        """Bring back what is away, if anything is; see :func:`restore`."""
        if self._backing is None:  # nothing lived when the session left, or an interrupt came when all was back
            return
        try:
            with self._lock:
                restore(self._arena, given, self._backing)
        finally:
            if not sizes_away(self._arena):
                self.close()

    def close(self) -> None:
        """Forget what is away."""
        if self._backing is not None:
            self._backing.close()
            self._backing = None


@contextlib.contextmanager
def _staging(arena: Arena) -> Iterator[tuple[ThreadPoolExecutor, list[memoryview]]]:
    """Give threads for the backing store's side, and two buffers that both sides use in turn."""
    buffers: list[HostBuffer] = []
    helper = ThreadPoolExecutor(_COPIERS, "sharedkernel-offload")
    try:
        buffers += [arena.driver.host_buffer(STAGING), arena.driver.host_buffer(STAGING)]
        yield helper, [buffer.view for buffer in buffers]
    finally:
        with signals_held():
            # the helper still uses the buffers, if the other side failed
            helper.shutdown(cancel_futures=True)
            for buffer in buffers:
                buffer.close()


def _start(
    helper: ThreadPoolExecutor, copy: Callable[[int, memoryview], None], offset: int, buffer: memoryview
) -> list[Future[None]]:
    """Let the helper's threads copy a buffer's bytes, each a part."""
    num_parts = max(1, min(_COPIERS, buffer.nbytes // _WORTH_A_THREAD))
    part = -(-buffer.nbytes // num_parts)
    return [
        helper.submit(copy, offset + start, buffer[start : start + part]) for start in range(0, buffer.nbytes, part)
    ]


def _finish(copies: list[Future[None]]) -> None:
    """Wait for parts of a copy; raise what one of them failed with."""
    for copy in copies:
        copy.result()


def _pieces(offsets: Iterable[tuple[Slot, int | None]]) -> Iterator[_Piece]:
    """Yield what is to be copied, in pieces as large as they can be."""
    address = offset = size = 0
    for slot, at in offsets:
        if at is None:
            continue
        if size and (slot.address, at) == (address + size, offset + size):
            size += slot.size
        else:
            yield from _cut(address, offset, size)
            address, offset, size = slot.address, at, slot.size
    yield from _cut(address, offset, size)


def _cut(address: int, offset: int, size: int) -> Iterator[_Piece]:
    for start in range(0, size, STAGING):
        yield address + start, offset + start, min(STAGING, size - start)
