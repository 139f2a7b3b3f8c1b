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

This module plans and reads; the bytes themselves are moved in :mod:`sharedkernel.shelf.memory`.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import torch

from sharedkernel.errors import SharedKernelError

#: changes with the layout
MAGIC = b"SKSHELF1"
#: pieces begin at the same place within a stretch of this many bytes as where they came from
ALIGNMENT = 64
#: dicts, lists and tuples within each other, at most
DEEPEST = 100

_HEADER = struct.Struct("<8sQ")
_PLAIN = "tensors, numbers, text, bytes and None in dicts, lists and tuples"

# --- what is written -----------------------------------


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


# --- planning -----------------------------------


@dataclass(slots=True)
class Piece:
    """A stretch of memory to be copied."""

    device: torch.device
    #: address of the first byte, and the one behind the last
    begin: int
    end: int
    #: where the first byte goes
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be written where."""

    header: bytes
    pieces: list[Piece]
    #: bytes in all, a multiple of the page's
    size: int
    #: keeps what the pieces are about from being freed meanwhile
    tensors: list[torch.Tensor]


def plan(value: Any) -> Plan:
    """Plan how *value* is laid out.

    Raises
    ------
    TypeError
        When there is something in it that a shelf does not hold; the sentence says where and what to do.
    ValueError
        When it contains itself or is nested too deeply.
    """
    survey = _Survey()
    root = survey.visit(value, ())
    pieces = _merge(survey.tensors)
    _place(survey, pieces)
    end, layouts = 0, []
    for piece in pieces:
        padding = piece.begin % ALIGNMENT
        layouts.append(PieceLayout(end, padding + piece.end - piece.begin, str(piece.device)))
        piece.offset = end + padding
        end = _round_up(piece.offset + piece.end - piece.begin, ALIGNMENT)
    body = _encoder.encode(Layout(layouts, root))
    first = _round_up(_HEADER.size + len(body), ALIGNMENT)
    for piece in pieces:
        piece.offset += first
    header = _HEADER.pack(MAGIC, len(body)) + body
    return Plan(header, pieces, _round_up(first + end, mmap.PAGESIZE), survey.tensors)


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


class _Survey:
    """Walks through a value and collects its tensors."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        #: of each tensor, in the same order
        self.layouts: list[TensorLayout] = []
        self._inside: list[int] = []

    def visit(self, value: Any, path: tuple[str, ...]) -> Node:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        kind = type(value)
        if kind not in (dict, OrderedDict, list, tuple):
            return _plain(value, path)
        if id(value) in self._inside:
            raise ValueError(f"the value{_at(path)} contains itself; a shelf holds only what comes to an end.")
        if len(path) >= DEEPEST:
            raise ValueError(f"the value{_at(path[:3])} is nested more than {DEEPEST} deep; flatten it.")
        self._inside.append(id(value))
        try:
            if isinstance(value, dict):
                return self._dict(value, path)
            items = [self.visit(item, (*path, f"[{index}]")) for index, item in enumerate(value)]
        finally:
            self._inside.pop()
        return ListLayout(items) if kind is list else TupleLayout(items)

    def _dict(self, value: dict[Any, Any], path: tuple[str, ...]) -> DictLayout:
        items = [
            (_plain(key, path, f"the key {key!r} of the value"), self.visit(item, (*path, f"[{key!r}]")))
            for key, item in value.items()
        ]
        metadata = getattr(value, "_metadata", None)
        return DictLayout(items, type(value) is OrderedDict, self.visit(metadata, (*path, "._metadata")))

    def _tensor(self, tensor: torch.Tensor, path: tuple[str, ...]) -> TensorLayout:
        if (fault := _fault(tensor)) is not None:
            raise TypeError(f"the tensor{_at(path)} {fault}.")
        tensor = tensor.detach()
        if tensor.data_ptr() % tensor.element_size():
            tensor = tensor.clone()  # at an address where no storage can hold it
        layout = TensorLayout(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=list(tensor.shape),
            strides=list(tensor.stride()),
            is_conjugated=tensor.is_conj(),
            is_negated=tensor.is_neg(),
        )
        self.tensors.append(tensor)
        self.layouts.append(layout)
        return layout


def _fault(tensor: torch.Tensor) -> str | None:
    """Return what keeps a tensor off a shelf, and what to do about it."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}, not a plain tensor; shelve `tensor.as_subclass(torch.Tensor)`"
    if tensor.is_quantized:
        return "is quantized; shelve `tensor.dequantize()`, or its `int_repr()` with scale and zero point"
    if tensor.is_nested:
        return "is nested; shelve the list `tensor.unbind()`"
    if tensor.layout is not torch.strided:
        return f"is not dense ({tensor.layout}); shelve `tensor.to_dense()`, or its indices and values"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"is on the device {tensor.device}, which a shelf cannot read; shelve a copy on the CPU"
    return None


def _plain(value: Any, path: tuple[str, ...], what: str = "the value") -> Plain:
    kind = type(value)
    if value is None or kind in (bool, float):
        return value  # type: ignore[no-any-return]
    if kind is bytes:
        return ByteString(value)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else LargeInteger(hex(value))
    if kind is complex:
        return ComplexNumber(value.real, value.imag)
    if kind is str and _is_unicode(value):
        return value  # type: ignore[no-any-return]
    name = "text that is no valid Unicode" if kind is str else f"of the type {kind.__module__}.{kind.__qualname__}"
    raise TypeError(
        f"{what}{_at(path)} is {name.replace('builtins.', '')}; a shelf holds {_PLAIN}: take it out or turn it into "
        "one of these."
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _at(path: tuple[str, ...]) -> str:
    return f" at {''.join(path)}" if path else ""


def _extent(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the address of a tensor's first byte and the one behind its last; None if it has no elements."""
    if tensor.numel() == 0:
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()


def _merge(tensors: list[torch.Tensor]) -> list[Piece]:
    """Return the pieces that the tensors lie in, by device and address."""
    stretches = sorted({(str(tensor.device), *extent) for tensor in tensors if (extent := _extent(tensor))})
    pieces: list[Piece] = []
    for device, begin, end in stretches:
        if pieces and str(pieces[-1].device) == device and begin < pieces[-1].end:
            pieces[-1].end = max(pieces[-1].end, end)
        else:
            pieces.append(Piece(torch.device(device), begin, end))
    return pieces


def _place(survey: _Survey, pieces: list[Piece]) -> None:
    """Write down of each tensor its piece, and where in the piece's storage it begins."""
    keys = [(str(piece.device), piece.begin) for piece in pieces]
    for tensor, layout in zip(survey.tensors, survey.layouts, strict=True):
        if (extent := _extent(tensor)) is not None:
            layout.piece = bisect_right(keys, (str(tensor.device), extent[0])) - 1
            begin = pieces[layout.piece].begin
            layout.start = begin % ALIGNMENT + extent[0] - begin


# --- reading -----------------------------------


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
        return _Reader(memory, _round_up(_HEADER.size + length, ALIGNMENT), layout.pieces, private).visit(layout.root)
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
