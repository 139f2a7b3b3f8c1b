"""Move a session's memory off a GPU page by page, where it comes from an arena; else storage by storage.

Pages go and come at unchanged addresses (:mod:`sharedkernel.device_memory.offload`): no tensor has to be found, views,
graphs and saved tensors notice nothing, and CUDA graphs that remember addresses stay right. What torch has from
elsewhere stays: the memory of CUDA graphs themselves, and of pools of the user's.
"""

from __future__ import annotations

from collections.abc import Callable

from sharedkernel.device_memory.offload import ArenaOffload
from sharedkernel.errors import SharedKernelError
from sharedkernel.session.lanes.lane_turns import LaneTurns
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.offload.cuda_storages import StorageMover, check_host_has_room
from sharedkernel.session.offload.host import CannotOffload, OffloadedMemory, PendingOffload, RestoreFailed
from sharedkernel.session.offload.residency import SMALLEST_OFFLOAD
from sharedkernel.units import format_bytes

#: bytes of torch's own pool that are ours: the segment that its events are looked at with
_OURS = 2 << 20


class OffloadedPages:
    """Pages that are away.

    Parameters
    ----------
    pages, size
        Whose, and how many bytes of the device they had.
    """

    def __init__(self, pages: LaneTurns, size: int) -> None:
        self._pages = pages
        #: bytes moved away
        self.size = size

    def restore(self, pause: Callable[[int], None]) -> None:
        """Bring everything back.

        Parameters
        ----------
        pause
            Called once before; what it raises leaves everything away.

        Raises
        ------
        RestoreFailed
            When the device has no room.
        """
        pause(0)
        try:
            self._pages.restore()
        except (SharedKernelError, RuntimeError) as error:
            raise RestoreFailed(
                f"{format_bytes(self.size)} of this notebook's memory could not be brought back to the device: {error} "
                "It is kept in the host's memory: run the cell again."
            ) from error


class PageOffload(PendingOffload):
    """Pages on their way out.

    Parameters
    ----------
    pages, leaving
        Whose, and the steps of it.
    """

    def __init__(self, pages: LaneTurns, pending: ArenaOffload) -> None:
        super().__init__(pending.size)
        self._pages = pages
        self._pending = pending

    def write(self) -> None:
        """Copy everything to the host's memory; see :meth:`PendingOffload.write`."""
        try:
            self._pending.write(lambda: self.is_stopped)
        except (SharedKernelError, RuntimeError) as error:
            raise CannotOffload(f"Its memory could not be copied to the host: {error}", reason="memory") from error
        if self.is_stopped:
            raise CannotOffload("Its code runs.", reason="busy")

    def commit(self) -> OffloadedMemory:
        """Free the memory; see :meth:`PendingOffload.commit`."""
        return OffloadedPages(self._pages, self._pending.commit())

    def abort(self) -> None:
        """Forget the copy."""
        self._pending.abort()


class PageMover:
    """Moves a GPU session's memory page by page as soon as it has pages, and storage by storage before.

    Parameters
    ----------
    pages
        Returns its pages; None while it has none.
    storages
        Moves what comes from torch's own allocator.
    meter
        Tells what stayed.
    """

    def __init__(self, pages: Callable[[], LaneTurns | None], storages: StorageMover, meter: Meter) -> None:
        self._pages = pages
        self._storages = storages
        self._meter = meter

    @property
    def keeps_addresses(self) -> bool:
        """Pages come back where they were, storages elsewhere."""
        return self._pages() is not None

    def prepare(self) -> PendingOffload:
        """Wait for the device, and find out where something lives.

        Raises
        ------
        CannotOffload
            When there is nothing to move, or no room for it.
        """
        pages = self._pages()
        if pages is None:
            return self._storages.prepare()
        size = pages.private_bytes
        if size < SMALLEST_OFFLOAD:
            raise CannotOffload(f"Only {format_bytes(size)} could be moved, which is not worth it.", reason="nothing")
        check_host_has_room(size)
        try:
            return PageOffload(pages, pages.prepare_offload())
        except (SharedKernelError, RuntimeError) as error:
            raise CannotOffload(f"Its memory cannot be moved now: {error}", reason="memory") from error

    def why_kept(self) -> str | None:
        """Return one sentence about what stayed; None if nothing did."""
        if self._pages() is None:
            return self._storages.why_kept()
        self._meter.measure_idle()
        kept = self._meter.memory.persistent - _OURS
        if kept < SMALLEST_OFFLOAD:
            return None
        return f"It keeps {format_bytes(kept)} of CUDA graphs, or of memory pools of its own."
