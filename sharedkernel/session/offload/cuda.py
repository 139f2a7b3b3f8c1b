"""Move a session's memory off a GPU page by page, where it comes from an arena; else storage by storage.

Pages go and come at unchanged addresses (:mod:`sharedkernel.device_memory.offload`): no tensor has to be found, views,
graphs and saved tensors notice nothing, and CUDA graphs that remember addresses stay right. What torch has from
elsewhere stays: the memory of CUDA graphs themselves, and of pools of the user's.

A storage is copied out, resized to nothing and, when it comes back, resized and filled again. Tensors, views,
gradients and what autograd saved go on to share it and notice nothing. Its address changes, though, so nothing moves
where something may have remembered one: a CUDA graph, or a library that can share torch's memory. Storages are
copied through pageable memory, so theirs is not the fastest way; it has not yet run on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import psutil
import torch
from torch.utils._python_dispatch import _disable_current_modes

from sharedkernel.device_memory.offload import ArenaOffload
from sharedkernel.errors import SharedKernelError
from sharedkernel.session.lanes.lane_turns import LaneTurns
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.offload import storages
from sharedkernel.session.offload.host import CannotOffload, PendingOffload, RestoreFailed
from sharedkernel.session.offload.residency import SMALLEST_OFFLOAD, kept_sentence
from sharedkernel.units import format_bytes

#: libraries whose arrays may share a tensor's memory by its address
SHARING_LIBRARIES = ("cupy", "jax", "numba.cuda", "cudf", "pycuda", "tensorflow", "warp", "rmm")
#: part of the host's free memory that is left alone
_LEFT_FREE = 0.1
#: bytes of torch's own pool that are ours: the segment that its events are looked at with
_OURS = 2 << 20


class StorageOffload(PendingOffload):
    """Storages on their way out, or empty, with what was in them in the host's memory.

    Parameters
    ----------
    found
        What to move.
    give_back
        Frees what torch's allocator keeps.
    """

    def __init__(self, found: list[torch.UntypedStorage], give_back: Callable[[], None]) -> None:
        super().__init__(sum(storage.nbytes() for storage in found))
        self._found = found
        self._give_back = give_back
        self._copies: list[torch.UntypedStorage] = []

    def write(self) -> None:
        """Copy everything to the host's memory; see :meth:`PendingOffload.write`."""
        try:
            for storage in self._found:
                self.check_not_stopped()
                copy = torch.UntypedStorage(storage.nbytes())
                with _disable_current_modes():
                    copy.copy_(storage)
                self._copies.append(copy)
        except RuntimeError as error:
            self._copies.clear()
            first_line = str(error).splitlines()[0]
            raise CannotOffload(f"Its memory could not be copied to the host: {first_line}", reason="memory") from error

    def commit(self) -> None:
        """Free the memory; see :meth:`PendingOffload.commit`."""
        self._empty()
        self._give_back()

    def _empty(self) -> None:
        for storage in self._found:
            storage.resize_(0)

    def abort(self) -> None:
        """Forget the copies."""
        self._copies.clear()

    def restore(self, pause: Callable[[int], None]) -> None:
        """Fill all storages again; see :meth:`PendingOffload.restore`."""
        done = 0
        try:
            for storage, kept in zip(self._found, self._copies, strict=True):
                pause(done)
                # no operation of the user's, for which the gate would want a grant
                with _disable_current_modes():
                    storage.resize_(kept.nbytes())
                    storage.copy_(kept)
                done += kept.nbytes()
        except BaseException as error:
            self._empty()  # unchanged since it came back, so it can go again without another copy
            if isinstance(error, RuntimeError):
                raise _not_back(self.size, str(error).splitlines()[0]) from error
            raise


class StorageMover:
    """Moves tensors of a GPU to the host's memory.

    Parameters
    ----------
    meter
        Tells what stayed besides tensors.
    give_back
        Frees what torch's allocator keeps.
    kind
        Of the device whose storages move, as torch calls it.
    """

    #: torch's allocator gives storages other addresses when they come back
    keeps_addresses = False

    def __init__(self, meter: Meter, give_back: Callable[[], None], kind: str = "cuda") -> None:
        self._meter = meter
        self._give_back = give_back
        self._kind = kind
        self._kept: dict[str, int] = {}

    def prepare(self) -> PendingOffload:
        """Look at all tensors.

        Raises
        ------
        CannotOffload
            When there is nothing to move, no room for it, or something may know its address.
        """
        if library := next((name for name in SHARING_LIBRARIES if name in sys.modules), None):
            raise CannotOffload(f"It uses {library}, which may share its tensors' memory.", reason="unsafe")
        found, self._kept, graphs = storages.movable_storages(self._kind)
        if graphs:
            raise CannotOffload("It has CUDA graphs, which remember where its tensors are.", reason="unsafe")
        pending = StorageOffload(found, self._give_back)
        _check_size(pending.size)
        return pending

    def why_kept(self) -> str | None:
        """Return one sentence about what stayed, the largest part first."""
        return kept_sentence(self._meter, self._kept, "that Python cannot see")


def _check_size(size: int) -> None:
    """Return if *size* bytes are worth moving, and the host's memory can take them; raises CannotOffload."""
    if size < SMALLEST_OFFLOAD:
        raise CannotOffload(f"Only {format_bytes(size)} could be moved, which is not worth it.", reason="nothing")
    available = psutil.virtual_memory().available
    if size > available * (1 - _LEFT_FREE):
        raise CannotOffload(
            f"{format_bytes(size)} do not fit into the host's memory, of which {format_bytes(available)} are free.",
            reason="memory",
        )


def _not_back(size: int, error: object) -> RestoreFailed:
    return RestoreFailed(
        f"{format_bytes(size)} of this notebook's memory could not be brought back to the device: {error} "
        "It is kept in the host's memory: run the cell again."
    )


class PageOffload(PendingOffload):
    """Pages on their way out, or away.

    Parameters
    ----------
    pages, pending
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
        self.check_not_stopped()

    def commit(self) -> None:
        """Free the memory; see :meth:`PendingOffload.commit`."""
        self.size = self._pending.commit()

    def abort(self) -> None:
        """Forget the copy."""
        self._pending.abort()

    def restore(self, pause: Callable[[int], None]) -> None:
        """Bring all pages back; *pause* is called once before. See :meth:`PendingOffload.restore`."""
        pause(0)
        try:
            self._pages.restore()
        except (SharedKernelError, RuntimeError) as error:
            raise _not_back(self.size, error) from error


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
        _check_size(size)
        try:
            return PageOffload(pages, pages.memory.prepare_offload())
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
