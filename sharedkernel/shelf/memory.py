"""A session's side of a shelf's files: written through a descriptor of the executor's, mapped by their readers.

Bytes are written with `pwrite`: through a mapping every page would have to be faulted in first. They are mapped shared,
so that all sessions of a user that read a name have the same bytes, and a mapping counts neither to the private memory
of the process nor against a limit on it.

Tensors on a GPU go through host memory, a block at a time: what is on the shelf is a file on every device.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import torch

from sharedkernel.paths import SHELF_DIRECTORY
from sharedkernel.shelf.planning import Piece, Plan

#: bytes between two looks at whether the user interrupted
_BLOCK = 64 << 20

#: this process has mapped a shelf, or the one that forked it; it may be gone again
_has_mapped = False


def write(plan: Plan, descriptor: int) -> None:
    """Write what *plan* says into a new file that has its size, and on to the disk: it may replace an older one.

    Raises
    ------
    OSError
        When it cannot be written.
    """
    _write_all(descriptor, memoryview(plan.header), 0)
    for piece in plan.pieces:
        _write_piece(descriptor, piece)
    os.fdatasync(descriptor)


def _write_piece(descriptor: int, piece: Piece) -> None:
    for begin in range(piece.begin, piece.end, _BLOCK):
        size = min(_BLOCK, piece.end - begin)
        offset = piece.offset + begin - piece.begin
        if piece.device.type == "cpu":
            _write_all(descriptor, _view(begin, size), offset)
        else:
            storage = torch._C._construct_storage_from_data_pointer(begin, piece.device, size)
            block = torch.empty(0, dtype=torch.uint8, device=piece.device).set_(storage).cpu()
            _write_all(descriptor, _view(block.data_ptr(), size), offset)


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def map_shared(descriptor: int) -> mmap.mmap:
    """Return the memory of *descriptor*, mapped; the descriptor may be closed then."""
    global _has_mapped
    _has_mapped = True
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags=mmap.MAP_SHARED)


def bytes_mapped_alone() -> int:
    """Return the bytes of shelves that this process has mapped and no other has.

    The system counts them among its private memory. They are none of it: they stay when the process goes.
    """
    if not _has_mapped or f"/{SHELF_DIRECTORY}/" not in Path("/proc/self/maps").read_text(errors="replace"):
        return 0
    total, is_shelf = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        label, _, rest = line.partition(":")
        if " " in label:  # the first line of a mapping: addresses, permissions, …
            is_shelf = f"/{SHELF_DIRECTORY}/" in line
        elif is_shelf and label in ("Private_Clean", "Private_Dirty"):
            total += int(rest.split()[0]) * 1024
    return total
