"""Find the memory of a process's tensors that can be moved away while nobody uses it.

What moves are whole pages inside the storages of CPU tensors, wherever these lie in private memory. Nothing is asked of
a storage but where it is: arrays of NumPy that tensors share, `torch.frombuffer` and what `torch.load` read move as
well, and no address changes. What stays, and is counted with its reason:

- memory that is shared with other processes (`share_memory_`, batches of a `DataLoader`'s workers) or mapped from a
  file (`torch.load(mmap=True)`, `numpy.memmap`): freeing it here would free nothing, or cut the link to the file;
- lazy clones, whose address cannot be asked for without making the copy;
- storages with less than :data:`SMALLEST` whole pages, which are not worth a mapping each;
- what no tensor holds that Python can see: arrays and data frames of other libraries, and tensors that only a graph of
  autograd holds. It appears in no survey; the meter shows it.

Tensors are found among the objects that the garbage collector knows (some 10 ms for 100,000 objects); gradients, which
Python may never have looked at, by their leaves.
"""

from __future__ import annotations

import bisect
import gc
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch._C import _is_cow_tensor  # type: ignore[attr-defined]
from torch.utils._python_dispatch import _disable_current_modes

from sharedkernel.units import round_up

PAGE_BYTES = mmap.PAGESIZE
#: whole pages of a storage below which it stays, in bytes
SMALLEST = 16 * PAGE_BYTES
#: most regions that are moved: each takes two more mappings of the 65,530 that a process may have
MOST_REGIONS = 16_384

SHARED, MAPPED, LAZY, SMALL = "shared with other processes", "mapped from a file", "lazy clones", "small tensors"
FIXED = "that cannot be resized"
OTHER, MANY = "in memory of an unknown kind", "in more pieces than can be mapped"


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A run of whole pages."""

    address: int
    #: bytes
    size: int


@dataclass(slots=True)
class Survey:
    """The storages that can be moved, and those that stay."""

    #: disjoint, in order of their addresses
    regions: list[Region] = field(default_factory=list)
    #: bytes that stay, by reason
    kept: dict[str, int] = field(default_factory=dict)
    #: keeps the memory from being freed while it is away
    owners: list[torch.UntypedStorage] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes that can be moved."""
        return sum(region.size for region in self.regions)

    def keep(self, reason: str, size: int) -> None:
        """Count *size* bytes that stay, for *reason*."""
        if size:
            self.kept[reason] = self.kept.get(reason, 0) + size


def survey() -> Survey:
    """Look at all tensors of this process (in the thread that runs user code, while none runs)."""
    found = Survey()
    spans: set[tuple[int, int]] = set()
    seen: set[int] = set()
    with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        for storage in _storages(found, "cpu"):
            if storage._cdata in seen:
                continue
            seen.add(storage._cdata)
            size = storage.nbytes()
            if size and (address := storage.data_ptr()):
                spans.add((address, address + size))
                found.owners.append(storage)
    _select(spans, found)
    return found


def movable_storages(kind: str) -> tuple[list[torch.UntypedStorage], dict[str, int], bool]:
    """Return the storages on a device of this kind that can be resized to nothing and back, each once.

    Returns
    -------
    tuple
        The storages; bytes that stay, by reason; and whether there are CUDA graphs, which remember addresses.
    """
    found = Survey()
    movable: dict[int, torch.UntypedStorage] = {}
    graphs = any(type(candidate).__name__ == "CUDAGraph" for candidate in gc.get_objects())
    with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        for storage in _storages(found, kind):
            # On the host a shared storage crashes when resized; on a GPU all storages say that they are shared.
            if not storage.nbytes() or storage._cdata in movable:
                continue
            if storage.resizable() and not (kind == "cpu" and storage.is_shared()):
                movable[storage._cdata] = storage
            else:
                found.owners.append(storage)
    found.keep(FIXED, sum({storage._cdata: storage.nbytes() for storage in found.owners}.values()))
    return list(movable.values()), found.kept, graphs


def _storages(found: Survey, device: str) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of all tensors on a kind of device that Python can see, some repeatedly; count lazy clones."""
    is_tensor: dict[type, bool] = {}
    lazy: dict[int, int] = {}
    bare = []
    for candidate in gc.get_objects():
        kind = type(candidate)  # not __class__, which proxies of other libraries overload
        if kind is torch.UntypedStorage:
            bare.append(candidate)
            continue
        known = is_tensor.get(kind)
        if known is None:
            known = is_tensor[kind] = issubclass(kind, torch.Tensor)
        tensor = candidate if known else None
        while tensor is not None:
            for part in _parts(tensor):
                storage = _storage(part, device)
                if storage is not None and not _is_cow_tensor(part):
                    yield storage
                elif storage is not None:
                    lazy[storage._cdata] = storage.nbytes()
            tensor = tensor.grad if tensor.is_leaf else None
    found.keep(LAZY, sum(lazy.values()))
    # Only now is it known which of these must not be asked for their address.
    yield from (storage for storage in bare if storage._cdata not in lazy and storage.device.type == device)


def _storage(tensor: torch.Tensor, kind: str) -> torch.UntypedStorage | None:
    """Return the storage of *tensor*; None for one on another device, or a wrapper without memory of its own."""
    try:
        storage = tensor.untyped_storage()
        return storage if storage.device.type == kind else None
    except RuntimeError:  # what it wraps is found by itself
        return None


def _parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return the tensors that hold the memory of *tensor*."""
    match tensor.layout:
        case torch.strided:
            return (tensor,)
        case torch.sparse_coo:
            return (tensor._indices(), tensor._values())
        case torch.sparse_csr | torch.sparse_bsr:
            return (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        case torch.sparse_csc | torch.sparse_bsc:
            return (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    return ()


def _select(spans: set[tuple[int, int]], found: Survey) -> None:
    """Turn *spans* of bytes into regions that can be moved."""
    mappings = Mappings.of_this_process()
    whole = []
    for start, end in _merged(spans):
        first, last = round_up(start, PAGE_BYTES), end // PAGE_BYTES * PAGE_BYTES
        reason = mappings.why_not(start, end)
        if reason is None and last - first < SMALLEST:
            reason = SMALL
        if reason is None:
            whole.append(Region(first, last - first))
        else:
            found.keep(reason, end - start)
    whole.sort(key=lambda region: region.size, reverse=True)
    for region in whole[MOST_REGIONS:]:
        found.keep(MANY, region.size)
    found.regions = sorted(whole[:MOST_REGIONS])


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return *spans* in order, those that overlap as one (arrays of NumPy may be seen by several storages)."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


class Mappings:
    """The kind of memory at each address.

    Parameters
    ----------
    lines
        As in `/proc/PID/maps`.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._starts: list[int] = []
        self._entries: list[tuple[int, str | None]] = []
        for line in lines:
            addresses, permissions, _offset, _device, inode, *_name = line.split(maxsplit=5)
            start, end = (int(address, 16) for address in addresses.split("-"))
            self._starts.append(start)
            self._entries.append((end, _why_not(permissions, inode)))

    @classmethod
    def of_this_process(cls) -> Mappings:
        """Read those of this process."""
        return cls(Path("/proc/self/maps").read_text(errors="replace").splitlines())

    def why_not(self, start: int, end: int) -> str | None:
        """Return why the bytes from *start* to *end* cannot be moved; None if they can."""
        place = bisect.bisect_right(self._starts, start) - 1
        while start < end:
            if not 0 <= place < len(self._starts) or not self._starts[place] <= start < self._entries[place][0]:
                return OTHER
            start, reason = self._entries[place]
            if reason is not None:
                return reason
            place += 1
        return None


def _why_not(permissions: str, inode: str) -> str | None:
    if permissions[3] == "s":
        return SHARED
    if inode != "0":
        return MAPPED
    return None if permissions.startswith("rw-") else OTHER
