"""The meter of a session's memory on the host device: bytes in use on the C heap.

On the host device a tensor is ordinary memory, so the meter reads `mallinfo2` (glibc): exact, 0.4 to 10 µs a call, or
some milliseconds where the heap has many free pieces.
What is in use at a boundary or at a cell's end is *persistent*; the largest excess over that while a grant is held is
*ephemeral*, seen by a thread that samples every few milliseconds while the profile is young and seldom once it is
stable (within 0.3 % of the true peak for iterations longer than 5 ms). Arrays of other libraries count as well:
they take the same memory. What the process had in use when it was given to its user is its baseline, and belongs to
*framework* memory together with all else that the process keeps to itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sharedkernel.ipc.shared_page import Page
from sharedkernel.protocol import Allowance
from sharedkernel.session.memory.meters import CLOCK_INTERVAL, SETTLE_INTERVAL, STABLE_AFTER, Meter
from sharedkernel.shelf.memory import bytes_mapped_alone
from sharedkernel.system.deferred_signals import InterruptSafeEvent
from sharedkernel.system.malloc import trim

#: seconds between samples while the profile is young, and once it is stable
YOUNG_INTERVAL, STABLE_INTERVAL = 0.002, 0.05
#: of :data:`STABLE_AFTER` samples, how many a source gets whose profile was stable when it ran last; and how many such
#: sources are remembered
GLANCES, _MOST_SOURCES = 10, 256
#: how many times longer than a sample took the pause after it is at least; and for how many seconds at most
PAUSE_OVER_COST, LONGEST_PAUSE = 100, 1.0
#: bytes that plain Python has to free for the heap to be trimmed at its end: milliseconds each 50 MiB
_WORTH_TRIMMING = 16 << 20
#: bytes free on the heap that the limit on the process allows besides all else
MOST_FREE_COUNTED = 128 << 20
#: bytes by which two looks at the heap may differ and belong together
_NEGLIGIBLE = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: asking for it reads a file, which takes as long as all else that ends a grant
_NUM_PROCESSORS = os.cpu_count() or 1


#: `mallopt` parameters and their values. Memory freed by an iteration stays on the heap for the next one, instead of
#: going back to the system and coming anew page by page (twice as many page faults as an unforked process, and 8 % of
#: the speed of a small CNN); what is left over goes back once the session has settled. Large allocations have maps of
#: their own, from the size at which glibc itself makes no larger exception: on the heap each might fit in no piece of
#: what is free, and free memory counts against the limit on private memory. And there are at most two heaps, since
#: threads of one cannot use what is free on the other. With a single heap, autograd's thread waits for the main
#: thread's lock (docs/decisions/2026-11-23-last-bytes.md).
_HEAP = {
    -3: 32 << 20,  # M_MMAP_THRESHOLD
    -1: 512 << 20,  # M_TRIM_THRESHOLD
    -2: 16 << 20,  # M_TOP_PAD
    -8: 2,  # M_ARENA_MAX
}


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


_libc = ctypes.CDLL(None)
# Called with the interpreter's lock held. Letting go of it for a microsecond every few milliseconds starves all other
# threads: each is woken before its patience (5 ms) ends, comes too late, and begins to wait anew.
_mallinfo2 = ctypes.PyDLL(None).mallinfo2
_mallinfo2.restype = _MallInfo


# Without it: the heap has a lock of its own, for which any but the allocating thread may wait, and the call walks along
# all free pieces, which takes milliseconds after many small operations. All of Python would wait meanwhile.
_mallinfo2_unlocked = ctypes.CDLL(None).mallinfo2
_mallinfo2_unlocked.restype = _MallInfo


def set_up_heap() -> None:
    """Make the heaps keep what is freed, and have two of them at most (before any thread is started)."""
    for parameter, value in _HEAP.items():
        _libc.mallopt(parameter, value)


def bytes_in_use() -> int:
    """Return the bytes in use on this process's C heap."""
    info = _mallinfo2()
    return int(info.uordblks + info.hblkhd)


def bytes_kept_apart(in_use: int) -> int:
    """Return the private writable bytes of this process that are not *in_use* on its heap.

    This is what a limit on private memory has to allow besides the tensors: stacks, libraries' data, and what is free
    on the heap, since that lies in pieces in which a large allocation may not fit. Of much free memory a part alone is
    counted: small allocations fit there. What is free at the heap's end is not: glibc extends it for an allocation that
    gets no map of its own.
    """
    return max(0, reserved_bytes() - in_use - uncounted_bytes() - int(_mallinfo2().keepcost))


def uncounted_bytes() -> int:
    """Return the bytes free in pieces of the heap beyond those that a limit on private memory allows besides."""
    info = _mallinfo2()
    return max(0, int(info.fordblks - info.keepcost) - MOST_FREE_COUNTED)


def limit_headroom() -> int | None:
    """Return the bytes by which this process's heap can grow under its limit on private memory; None: it has none."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return limit - reserved_bytes() + int(_mallinfo2().keepcost)  # what is free at the heap's end is taken first


def limit_private_memory(limit: int) -> None:
    """Set the limit on this process's private memory to *limit* bytes, or the hard one if that is lower."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]  # an executor with more rights may have lowered it
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def reserved_bytes() -> int:
    """Return the bytes of this process that count against a limit on private memory: reserved, used or not."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[5]) * _PAGE_BYTES


def private_bytes() -> int:
    """Return the memory that would be free if this process were gone (a few milliseconds).

    What was read of a file and not changed is not: the system takes it back whenever it wants.
    """
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024 - bytes_mapped_alone()
    return 0


def _new_private_bytes() -> int:
    """Return about the memory that would be free if this process were gone, where it has begun a moment ago.

    Forked from another, it has alone what it has written to since, a page a fault. To look at each page takes the
    kernel longer than a cell (:func:`private_bytes`).
    """
    written = resource.getrusage(resource.RUSAGE_SELF).ru_minflt * _PAGE_BYTES
    with open("/proc/self/statm", "rb") as statm:
        _, resident, shared, *_ = map(int, statm.read().split())
    return min(written, (resident - shared) * _PAGE_BYTES)


@contextlib.contextmanager
def unlimited_rlimit() -> Iterator[None]:
    """Lift the limit that the executor sets on this process's private memory (RLIMIT_DATA), for the session's own work.

    Of user code only an exception's own text is requested meanwhile.
    """
    limit, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != hard:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        # The executor may have set another one meanwhile, which holds.
        if limit != hard and resource.getrlimit(resource.RLIMIT_DATA)[0] == hard:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


class HostMeter(Meter):
    """Measures one session on the host device.

    Parameters
    ----------
    page
        Shown there: persistent, live, ephemeral and framework bytes.
    """

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self._baseline = 0
        #: bytes that the heap counts as in use, and that were moved away
        self._away = 0
        #: hashes of the sources whose profiles have become stable, the oldest first
        self._stable_sources: dict[str, None] = {}
        self._held_since = 0.0
        self._cpu_since = 0.0
        self._holding = InterruptSafeEvent()

    def start_over(self) -> None:
        """Take what is in use now as the baseline: it is nobody's data.

        Framework memory is estimated, and measured once the session has settled after its next grant.
        """
        self._baseline = bytes_in_use()
        self._figures.set_framework(_new_private_bytes())

    @property
    def used_bytes(self) -> int:
        """Bytes in use now, beyond the baseline."""
        return max(0, bytes_in_use() - self._baseline - self._away)

    def _in_use(self) -> tuple[int, int | None]:
        return self.used_bytes, None

    def data_bytes(self) -> int:
        """Return what a limit on this process's private memory must allow besides persistent and ephemeral bytes."""
        in_use = max(0, bytes_in_use() - self._away)
        return bytes_kept_apart(in_use) + min(in_use, self._baseline)

    def grant_began(self) -> None:
        """Start to look for the peak: a moment later, when the operation that waited for the grant is under way."""
        # Nothing was added since the last one ended: to look at the heap takes as long as all else of a turn's begin.
        self._figures.grant_began()
        self._held_since, self._cpu_since = time.monotonic(), time.process_time()
        self._holding.set()

    def grant_ended(self, *, at_boundary: bool) -> int:
        """Stop looking; return the live bytes beyond persistent, which at a boundary are none."""
        self._holding.clear()
        if not at_boundary:
            return self._figures.interrupted(self.used_bytes)
        self.boundary_measured()
        return 0

    def boundary_measured(self) -> None:
        """Measure at a boundary, with the grant kept."""
        # samples taken seldom miss peaks: they show no decline
        self._figures.iteration_ended(self.used_bytes, may_decline=not self.is_stable)

    def look_closely(self) -> None:
        """Sample often again: other code may run now."""
        if self.is_stable and self._source is not None:
            self._stable_sources[self._source] = None
            if len(self._stable_sources) > _MOST_SOURCES:
                del self._stable_sources[next(iter(self._stable_sources))]
        super().look_closely()

    def source_read(self, source: str) -> None:
        """Sample often for a moment only if *source* has been measured before, and for longer where its peak rises.

        Each sample takes the interpreter from the code that runs.
        """
        is_first = self._source is None
        super().source_read(source)
        if is_first and source in self._stable_sources:
            self._quiet_looks = STABLE_AFTER - GLANCES

    def section_ended(self) -> None:
        """Measure at the end of a section, when everything in use is persistent."""
        before, used = self._figures.persistent, self.used_bytes
        self._figures.section_ended(used)
        if used + _WORTH_TRIMMING < before and not self._is_unsettled:  # no grant was held, after which it is trimmed
            trim()

    def record_offload(self, size: int) -> None:
        """Record that *size* bytes were offloaded, at unchanged addresses."""
        self._away = size
        super().record_offload(size)

    def record_restore(self) -> None:
        """Record that everything is restored."""
        self._away = 0
        super().record_restore()

    def allow(self, allowance: Allowance) -> None:
        """Set the limit on this process, where the executor could not do that from outside."""
        if allowance.data_limit_bytes is not None:
            limit_private_memory(allowance.data_limit_bytes)

    def utilisation(self) -> float | None:
        """Return processor-seconds per second held and processor since the grant began, or this was asked last.

        None if held too briefly.
        """
        now, used = time.monotonic(), time.process_time()
        held, busy = now - self._held_since, used - self._cpu_since
        if held < 0.005:
            return None
        self._held_since, self._cpu_since = now, used
        return min(1.0, busy / held / _NUM_PROCESSORS)

    def _measure_framework(self) -> None:
        """Measure what the process keeps apart from tensors (a few milliseconds, so only while nothing runs)."""
        self._is_unsettled = False
        trim()
        away, used = self._away, self.used_bytes
        framework = max(0, private_bytes() - used)
        if away != self._away:  # the main thread has moved memory meanwhile: the two figures do not belong together
            return
        if abs(self.used_bytes - used) > _NEGLIGIBLE:  # nor if plain Python has made or freed some
            self._is_unsettled = True
            return
        self._figures.set_framework(framework)

    def _watch(self, on_clock: Callable[[], None], on_sample: Callable[[int], None]) -> None:
        self._is_unsettled = True
        last_tick = sample_at = now = 0.0
        while True:
            patience = SETTLE_INTERVAL if self._is_unsettled or self._figures.has_live else None
            if not self._holding.is_set() and self._holding.wait(patience):
                time.sleep(YOUNG_INTERVAL)  # what waited for the grant gets on first, and may be done by then
            if not self._holding.is_set():
                is_settled = time.monotonic() >= now + SETTLE_INTERVAL
                if is_settled and self._figures.has_live:  # plain Python may free what an interrupted iteration has
                    self._take_sample()
                # If it is away, it may be on its way back, a part of it there and none of it counted.
                if is_settled and self._is_unsettled and not self._away and not self._holding.is_set():
                    self._measure_framework()
                    now = time.monotonic()  # if that was in vain, the next one waits as long
                continue
            self._is_unsettled = True
            if (now := time.monotonic()) >= max(last_tick, self._held_since) + CLOCK_INTERVAL:
                last_tick = now
                on_clock()
            if now < sample_at:
                time.sleep(min(sample_at - now, CLOCK_INTERVAL))
                continue
            used, cost = self._take_sample()
            if used is not None:
                # A peak that is hardly higher than those before is chance, no reason to look closely again.
                known = self._figures.known
                if used > known + (known >> 4):
                    self._quiet_looks = 0
                self._quiet_looks += 1
                on_sample(used)
            sample_at = now + min(PAUSE_OVER_COST * cost, LONGEST_PAUSE)
            time.sleep(YOUNG_INTERVAL if self._quiet_looks < STABLE_AFTER else STABLE_INTERVAL)

    def _take_sample(self) -> tuple[int | None, float]:
        """Show what is live now; return the bytes in use (None: the sample came late), and the seconds it took."""
        stretch = self._figures.stretch
        begun = time.thread_time()
        info = _mallinfo2_unlocked()
        cost = time.thread_time() - begun
        used = max(0, int(info.uordblks + info.hblkhd) - self._baseline - self._away)
        return used if self._figures.sampled(stretch, used) else None, cost
