"""Give an idle session's device memory back to the others, and get it again before the next line of user code.

The executor sends :class:`~sharedkernel.protocol.OffloadCommand`. If no user code runs, nor can run by itself, what
can be moved is written away by a thread while the session goes on to serve its user; a section that opens meanwhile
stops it. Then the memory is freed between two messages of the kernel, and the session sends
:class:`~sharedkernel.protocol.OffloadedReport`.

The first section that opens then (a cell, a widget's callback, a completion, a stray operation) waits for the
executor's :class:`~sharedkernel.protocol.RestoreCommand`, brings everything back and sends
:class:`~sharedkernel.protocol.RestoredReport`; sections of other threads wait for it. If that is interrupted, refused
or fails, the section ends with the error, everything is away as before, and the next section tries again.

What can be moved, and how, is the affair of a :class:`Mover`: one for each kind of device.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

from sharedkernel import protocol
from sharedkernel.paths import offload_directory
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.offload import idleness, storages
from sharedkernel.session.offload.host import CannotOffload, PendingOffload, RegionOffload, RestoreFailed
from sharedkernel.system.deferred_signals import InterruptSafeEvent
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: how often a restore is tried while the room for it is kept, and the seconds in between
_RESTORE_TRIES, _RESTORE_PAUSE = 3, 0.5
#: bytes below which a session is left alone
SMALLEST_OFFLOAD = 1 << 20
_ELSEWHERE = "outside the tensors that Python can see (arrays of other libraries, for example)"


class Mover(Protocol):
    """Moves the device memory of a process."""

    @property
    def keeps_addresses(self) -> bool:
        """Whether what comes back has the addresses it had, so that it can go away in the middle of an operation."""

    def prepare(self) -> PendingOffload:
        """Find what can be moved, and make room for it elsewhere; raises CannotOffload."""

    def why_kept(self) -> str | None:
        """Return one sentence about what stayed when the memory was last moved away, and why; None if nothing did."""


def kept_sentence(meter: Meter, kept: Mapping[str, int], elsewhere: str) -> str | None:
    """Return one sentence about what stays, the largest part first; None if nothing does.

    Parameters
    ----------
    meter
        Tells how much that is.
    kept
        Bytes by what they are and why they stay.
    elsewhere
        Where the rest is.
    """
    meter.measure_idle()
    counted = sum(size for reason, size in kept.items() if reason not in (storages.SHARED, storages.MAPPED))
    parts = {**kept, elsewhere: meter.memory.persistent - counted}
    told = sorted(((size, reason) for reason, size in parts.items() if size >= SMALLEST_OFFLOAD), reverse=True)
    return "It keeps " + ", ".join(f"{format_bytes(size)} {reason}" for size, reason in told) + "." if told else None


class HostMover:
    """Moves tensors of the host device to a file.

    Parameters
    ----------
    meter
        Tells what stayed besides tensors.
    """

    keeps_addresses = True

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._kept: dict[str, int] = {}

    def prepare(self) -> PendingOffload:
        """Look at all tensors, and make the file.

        Raises
        ------
        CannotOffload
            When there is nothing to move, or nowhere to move it.
        """
        survey = storages.survey()
        self._kept = survey.kept
        if survey.size < SMALLEST_OFFLOAD:
            stays = self.why_kept()
            raise CannotOffload(
                f"Only {format_bytes(survey.size)} could be moved, which is not worth it. {stays or ''}".strip(),
                reason="nothing",
            )
        return RegionOffload(survey, offload_directory())

    def why_kept(self) -> str | None:
        """Return one sentence about what stays, the largest part first."""
        return kept_sentence(self._meter, self._kept, _ELSEWHERE)


class NoMover:
    """Moves nothing: in plain mode a session's memory stays on the GPU until its user's code frees it."""

    keeps_addresses = False

    def prepare(self) -> PendingOffload:
        """Decline.

        Raises
        ------
        CannotOffload
            Always.
        """
        raise CannotOffload("Device memory stays where it is in this run of the executor.", reason="mode")

    def why_kept(self) -> str | None:
        """Return None: nothing was ever moved."""
        return None


class RestoreAnswer:
    """The executor's answer to a session that waits to be restored."""

    def __init__(self) -> None:
        #: set once there is an answer
        self.came = InterruptSafeEvent()
        self._refusal: protocol.RefusedGrant | None = None

    def give(self, refusal: protocol.RefusedGrant | None) -> None:
        """Record the answer: there is room, or *refusal*."""
        self._refusal = refusal
        self.came.set()

    def clear(self) -> None:
        """Forget it: it was for the sections that are over."""
        self._refusal = None
        self.came.clear()

    def check(self) -> None:
        """Raise if it is a refusal.

        Raises
        ------
        torch.OutOfMemoryError
            With the executor's message.
        """
        if self._refusal is not None:
            raise torch.OutOfMemoryError(self._refusal.message)


class Residency:
    """Tracks and moves the offloaded memory of one session; called with `link.lock` held where it says so.

    Parameters
    ----------
    mover, meter
        Of the session's device.
    """

    def __init__(self, mover: Mover, meter: Meter) -> None:
        self._mover = mover
        self._meter = meter
        self._pending: PendingOffload | None = None
        self._offloaded: PendingOffload | None = None
        self.answer = RestoreAnswer()

    @property
    def away_bytes(self) -> int:
        """Bytes that are away; 1 where the session has left with nothing, since 0 says that it has not."""
        return max(1, self._offloaded.size) if self._offloaded is not None else 0

    @property
    def is_away(self) -> bool:
        """Something is away."""
        return self._offloaded is not None

    @property
    def keeps_addresses(self) -> bool:
        """Memory can go away in the middle of an operation."""
        return self._mover.keeps_addresses

    @property
    def is_moving(self) -> bool:
        """Memory is being written away, which the next section stops."""
        return self._pending is not None

    def section_opened(self) -> None:
        """Keep the memory where it is from now on (with the lock held)."""
        if self._pending is not None:
            self._pending.stop()

    # --- out ----------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def offload(self, busy: Callable[[], str | None]) -> AsyncIterator[Callable[[], protocol.OffloadedReport]]:
        """Write away what can be moved, and yield a function that frees it and returns what to say.

        Parameters
        ----------
        busy
            Returns why user code may run, if it may.

        Raises
        ------
        CannotOffload
            When it has to stay.
        """
        loop = asyncio.get_running_loop()
        with self._offloading(lambda: _check_idle(busy, loop)) as (pending, commit):
            await _in_a_thread(pending.write)
            yield commit

    @contextlib.contextmanager
    def offload_at_once(
        self, loop: asyncio.AbstractEventLoop, held: Collection[int], busy: Callable[[], str | None]
    ) -> Iterator[Callable[[], protocol.OffloadedReport]]:
        """Write everything away in the middle of what runs, and yield what :meth:`offload` yields.

        A session that has nothing to move still leaves: the room of its iterations is what others wait for.

        Parameters
        ----------
        loop
            The kernel's.
        held
            Numbers of the threads that wait at the gate, kept up to date.
        busy
            Returns why other code of the user may run, if it may.

        Raises
        ------
        CannotOffload
            When it has to stay.
        """
        with self._offloading(lambda: _check_idle(busy, loop, held), is_iterating=True) as (pending, commit):
            pending.write()
            yield commit

    @contextlib.contextmanager
    def _offloading(
        self, check: Callable[[], None], *, is_iterating: bool = False
    ) -> Iterator[tuple[PendingOffload, Callable[[], protocol.OffloadedReport]]]:
        """Prepare to leave, and yield what is to be written and a function that leaves, if *check* still passes."""
        check()
        began = time.monotonic()
        try:
            pending = self._mover.prepare()
        except CannotOffload as error:
            if not is_iterating or error.reason != "nothing":
                raise
            pending = PendingOffload(0)
        self._pending = pending
        left = False

        def commit() -> protocol.OffloadedReport:
            nonlocal left
            pending.check_not_stopped()
            check()
            left = True
            pending.commit()
            self._offloaded = pending
            self._meter.record_offload(pending.size)
            return protocol.OffloadedReport(
                memory=self._meter.memory,
                offloaded_bytes=pending.size,
                kept=self._mover.why_kept(),
                seconds=time.monotonic() - began,
            )

        try:
            yield pending, commit
        finally:
            self._pending = None
            pending.stop()
            if not left:
                pending.abort()

    # --- back ---------------------------------------------------------------------------------------------------------

    def restore(self, pause: Callable[[int, int], None]) -> Callable[[], protocol.RestoredReport]:
        """Bring everything back; return what takes note of it (with the lock held) and returns what to say.

        Parameters
        ----------
        pause
            Called now and then with the bytes that are back and all there are; what it raises undoes the rest.

        Raises
        ------
        RestoreFailed
            When it cannot be brought back; it is away as before.
        """
        offloaded = self._offloaded
        assert offloaded is not None
        began = time.monotonic()
        bring_back(offloaded.restore, lambda done: pause(done, offloaded.size))

        def note() -> protocol.RestoredReport:
            self._offloaded = None
            self._meter.record_restore()
            return protocol.RestoredReport(memory=self._meter.memory, seconds=time.monotonic() - began)

        return note


def bring_back(restore: Callable[[Callable[[int], None]], None], pause: Callable[[int], None]) -> None:
    """Restore memory; try again where that fails, since the room for it is lost with the last try.

    A driver's call can fail for a moment, and a GiB takes thousands of them.

    Parameters
    ----------
    restore
        See :meth:`.PendingOffload.restore`.
    pause
        Called now and then with the bytes that are back; what it raises undoes the rest.

    Raises
    ------
    RestoreFailed
        When the last try fails; it is away as before.
    """
    for tries_left in reversed(range(_RESTORE_TRIES)):
        try:
            restore(pause)
        except RestoreFailed as error:
            if not tries_left:
                raise
            log.warning("memory is not back yet, and is tried again: %s", error)
            time.sleep(_RESTORE_PAUSE)
        else:
            return


async def _in_a_thread(work: Callable[[], None]) -> None:
    """Do *work* in a thread of its own, and wait for it even if this is cancelled."""
    with ThreadPoolExecutor(1, thread_name_prefix="sharedkernel-offload") as threads:
        try:
            done = threads.submit(work)
        except RuntimeError:  # the limit on this process's memory has no room for a thread's stack
            work()
        else:
            await asyncio.wrap_future(done)


def _check_idle(busy: Callable[[], str | None], loop: asyncio.AbstractEventLoop, held: Collection[int] = ()) -> None:
    if (what := busy()) is not None:
        raise CannotOffload(what, reason="busy")
    if threads := idleness.user_threads(held):
        raise CannotOffload(
            f"Threads of its own are alive, which may use its memory at any time: {_some(threads)}.", reason="threads"
        )
    if tasks := idleness.user_tasks(loop):
        raise CannotOffload(
            f"Background tasks of its own wait, which may use its memory at any time: {_some(tasks)}.", reason="tasks"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
