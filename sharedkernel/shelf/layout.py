"""How a value lies in the shelf's memory: a header, the layout in msgpack, and the bytes of its tensors.

A value is a tensor, or dicts, lists and tuples of tensors and of plain things (numbers, text, bytes, None). Nothing
else is taken and nothing is ever unpickled, so to read a layout runs nobody's code.

Tensors are cut into *pieces*: stretches of memory that overlap in no byte. Tensors that share bytes lie in one piece
and share them again when they are read; a small view of a large tensor takes only what lies between its first and its
last element. A piece keeps its address modulo 64, so that what was aligned stays aligned.

=========  ============================================================
bytes      what
=========  ============================================================
0 to 8     :data:`MAGIC`
8 to 16    length of the layout, little-endian
from 16    the layout
then       the pieces, from the next multiple of 64 on
=========  ============================================================

This module reads; :mod:`sharedkernel.shelf.planning` plans, and :mod:`sharedkernel.shelf.memory` moves the bytes.
"""

from __future__ import annotations

import mmap
import struct
from collections import OrderedDict
from typing import Any, TypeAlias

import msgspec
import torch

from sharedkernel.errors import SharedKernelError

#: changes with the layout
MAGIC = b"SKSHELF1"
#: pieces begin at the same place within a stretch of this many bytes as where they came from
ALIGNMENT = 64

_HEADER = struct.Struct("<8sQ")


class LargeInteger(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An integer that takes more than 64 bits."""

    hexadecimal: str


class ByteString(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Bytes; on the wire they could not be told from text."""

    data: bytes


class ComplexNumber(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A complex number."""

    real: float
    imag: float


Plain: TypeAlias = bool | int | float | str | ByteString | LargeInteger | ComplexNumber | None


class TensorLayout(msgspec.Struct, array_like=True, tag=3):
    """One tensor."""

    #: as torch names it
    dtype: str
    shape: list[int]
    #: in elements
    strides: list[int]
    #: torch's lazy conjugation and negation
    is_conjugated: bool = False
    is_negated: bool = False
    #: which piece, and where in it (bytes); None without elements
    piece: int | None = None
    start: int = 0


class DictLayout(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A dict, in its order."""

    items: list[tuple[Plain, Node]]
    is_ordered: bool = False
    #: what `state_dict()` attaches: versions of modules
    metadata: Node = None


class ListLayout(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A list."""

    items: list[Node]


class TupleLayout(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A tuple."""

    items: list[Node]


Node: TypeAlias = Plain | TensorLayout | DictLayout | ListLayout | TupleLayout


class PieceLayout(msgspec.Struct, frozen=True, array_like=True):
    """One piece, as the storage of its tensors."""

    #: first byte, counted from where the pieces begin; a multiple of 64
    start: int
    size: int
    #: where it was
    device: str


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """A whole value."""

    pieces: list[PieceLayout]
    root: Node


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Layout)


def round_up(size: int, step: int) -> int:
    """Return the first multiple of *step* that is not below *size*."""
    return -(-size // step) * step


def pack(layout: Layout) -> bytes:
    """Return what lies before the pieces: the header and the layout."""
    body = _encoder.encode(layout)
    return _HEADER.pack(MAGIC, len(body)) + body


def read(memory: mmap.mmap, *, private: bool = False) -> Any:
    """Return the value that lies in *memory*.

    Parameters
    ----------
    memory
        All of it, mapped; lives until the last tensor is gone.
    private
        The tensors get memory of their own, on the device where they were if it is here, instead of lying in *memory*.

    Raises
    ------
    SharedKernelError
        When what lies there cannot be read.
    """
    try:
        magic, length = _HEADER.unpack_from(memory)
        if magic != MAGIC:
            raise SharedKernelError("it was written by another version of sharedkernel")
        layout = _decoder.decode(memory[_HEADER.size : _HEADER.size + length])
        return _Reader(memory, round_up(_HEADER.size + length, ALIGNMENT), layout.pieces, private).visit(layout.root)
    except (SharedKernelError, msgspec.MsgspecError, struct.error, IndexError, ValueError, RuntimeError) as error:
        raise SharedKernelError(f"what lies there cannot be read: {error}; delete it and shelve it anew.") from error


class _Reader:
    """Makes a value of what lies in memory."""

    def __init__(self, memory: mmap.mmap, first: int, pieces: list[PieceLayout], private: bool) -> None:
        self._memory = memory
        self._first = first
        self._storages = [self._storage(piece, private) for piece in pieces]

    def _storage(self, piece: PieceLayout, private: bool) -> torch.UntypedStorage:
        shared = torch.frombuffer(self._memory, dtype=torch.uint8, count=piece.size, offset=self._first + piece.start)
        if not private:
            return shared.untyped_storage()
        is_here = piece.device != "cpu" and torch.cuda.is_available()
        return (shared.to(piece.device) if is_here else shared.clone()).untyped_storage()

    def visit(self, node: Node) -> Any:
        match node:
            case TensorLayout():
                return self._tensor(node)
            case DictLayout():
                return self._dict(node)
            case ListLayout(items=items):
                return [self.visit(item) for item in items]
            case TupleLayout(items=items):
                return tuple(self.visit(item) for item in items)
            case ByteString(data=data):
                return data
            case LargeInteger(hexadecimal=text):
                return int(text, 16)
            case ComplexNumber(real=real, imag=imag):
                return complex(real, imag)
        return node

    def _dict(self, node: DictLayout) -> dict[Any, Any]:
        items = ((self.visit(key), self.visit(item)) for key, item in node.items)
        if not node.is_ordered:
            return dict(items)
        ordered = OrderedDict(items)
        if node.metadata is not None:
            ordered._metadata = self.visit(node.metadata)  # type: ignore[attr-defined]
        return ordered

    def _tensor(self, node: TensorLayout) -> torch.Tensor:
        dtype = getattr(torch, node.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise SharedKernelError(f"this version of torch knows no type {node.dtype}")
        if node.piece is None:
            return torch.empty_strided(node.shape, node.strides, dtype=dtype)
        storage = self._storages[node.piece]
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        tensor.set_(storage, node.start // dtype.itemsize, node.shape, node.strides)
        if node.is_conjugated:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if node.is_negated else tensor
