"""The layout of a value in a shelf's file: a safetensors file, with a table of what its tensors were part of.

A value is a tensor, or dicts, lists and tuples of tensors and of plain things (numbers, text, bytes, None). Nothing
else is taken and nothing is ever unpickled, so to read a layout runs nobody's code.

Tensors are cut into *pieces*: stretches of memory that overlap in no byte. Tensors that share bytes lie in one piece
and share them again when they are read; a small view of a large tensor takes only what lies between its first and its
last element. Each piece is a tensor of the file, named by the place of the first of its tensors. Where that is all of
the piece, as in most state dicts, any program that reads safetensors finds it as it was; else a piece is bytes.

The format (https://huggingface.co/docs/safetensors): the length of the header in eight bytes, little-endian; the header
in JSON, with spaces to a multiple of 64; and the tensors without gaps, larger numbers first, so that all are aligned.
The header's ``__metadata__`` has a :class:`Layout` under :data:`TABLE`, as msgpack in base64: JSON has no NaN.

This module reads; :mod:`sharedkernel.shelf.memory` plans and moves the bytes.
"""

from __future__ import annotations

import mmap
from base64 import b64decode, b64encode
from collections import OrderedDict
from typing import Any, TypeAlias

import msgspec
import torch

from sharedkernel.errors import SharedKernelError
from sharedkernel.units import round_up

#: the table's key in `__metadata__`; changes with the layout
TABLE = "sharedkernel-1"
#: the tensors of a file begin at a multiple of this many bytes
HEADER_ALIGNMENT = 64

_LENGTH_BYTES = 8


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
    #: which piece, and where in it it begins (bytes); None without elements
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

    #: of the file's tensor
    name: str
    #: where it was
    device: str


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """A whole value."""

    pieces: list[PieceLayout]
    root: Node


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Layout)


def pack(layout: Layout, tensors: dict[str, Any]) -> bytes:
    """Return what lies before the tensors: the header and its length.

    Parameters
    ----------
    layout
        The table.
    tensors
        Of each of the file's tensors its type, shape and place, as the header has them.
    """
    table = b64encode(_encoder.encode(layout)).decode()
    header = msgspec.json.encode({"__metadata__": {"format": "pt", TABLE: table}, **tensors})
    length = round_up(_LENGTH_BYTES + len(header), HEADER_ALIGNMENT) - _LENGTH_BYTES
    return length.to_bytes(_LENGTH_BYTES, "little") + header.ljust(length)


def read(memory: mmap.mmap, *, private: bool = False) -> Any:
    """Return the value that lies in *memory*.

    Parameters
    ----------
    memory
        All of the file, mapped; lives until the last tensor is gone.
    private
        The tensors get memory of their own, on the device where they were if it is here, instead of lying in *memory*.

    Raises
    ------
    SharedKernelError
        When what lies there cannot be read.
    """
    try:
        first = _LENGTH_BYTES + int.from_bytes(memory[:_LENGTH_BYTES], "little")
        header = msgspec.json.decode(memory[_LENGTH_BYTES:first])
        if TABLE not in header["__metadata__"]:
            raise SharedKernelError("it was written by another version of sharedkernel")
        layout = _decoder.decode(b64decode(header["__metadata__"][TABLE]))
        places = [(*header[piece.name]["data_offsets"], piece.device) for piece in layout.pieces]
        return _Reader(memory, first, places, private).visit(layout.root)
    except (SharedKernelError, LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SharedKernelError(f"what lies there cannot be read: {error}; delete it and shelve it anew.") from error


class _Reader:
    """Makes a value of what lies in memory."""

    def __init__(self, memory: mmap.mmap, first: int, places: list[tuple[int, int, str]], private: bool) -> None:
        self._memory = memory
        self._storages = [self._storage(first + begin, end - begin, device, private) for begin, end, device in places]

    def _storage(self, begin: int, size: int, device: str, private: bool) -> torch.UntypedStorage:
        shared = torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=begin)
        if not private:
            return shared.untyped_storage()
        is_here = device != "cpu" and torch.cuda.is_available()
        return (shared.to(device) if is_here else shared.clone()).untyped_storage()

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
