"""A session's side of a shelf's files: planned, written through a descriptor of the executor's, mapped by readers.

A plan says where the tensors of a value go in the file: the pieces, and the header before them. What a shelf does not
hold is refused there, with a sentence that says where it is and what to do. `layout.py` describes the layout.

Bytes are written with `pwrite`: through a mapping every page would have to be faulted in first. They are mapped shared,
so that all sessions of a user that read a name have the same bytes, and a mapping counts neither to the private memory
of the process nor against a limit on it.

Tensors on a GPU go through host memory, a block at a time: what is on the shelf is a file on every device.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import re
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sharedkernel.paths import SHELF_DIRECTORY
from sharedkernel.shelf.layout import (
    ByteString,
    ComplexNumber,
    DictLayout,
    LargeInteger,
    Layout,
    ListLayout,
    Node,
    PieceLayout,
    Plain,
    TensorLayout,
    TupleLayout,
    pack,
)
from sharedkernel.units import round_up

#: dicts, lists and tuples within each other, at most
DEEPEST = 100
#: a piece that is bytes begins at the same place within so many bytes as where it came from, and takes a multiple of it
_ALIGNMENT = 16
#: names of types in a safetensors file; a tensor of any other type is bytes there
_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.uint32: "U32", torch.int32: "I32", torch.float32: "F32",
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip

#: halves of pairs, which make a text no valid Unicode
_SURROGATES = re.compile("[\ud800-\udfff]")

_PLAIN = "tensors, numbers, text, bytes and None in dicts, lists and tuples"


@dataclass(slots=True)
class Piece:
    """A stretch of memory to be copied."""

    device: torch.device
    #: address of the first byte, and the one behind the last
    begin: int
    end: int
    #: the tensors that lie in it, with their places in the value
    tensors: list[tuple[torch.Tensor, TensorLayout, str]] = field(default_factory=list)
    #: where the first byte goes
    offset: int = 0

    @property
    def whole(self) -> torch.Tensor | None:
        """The tensor that is all of it, of a type that a safetensors file has; None: it is bytes there."""
        for tensor, layout, _ in self.tensors:
            if tensor.nbytes == self.end - self.begin and tensor.is_contiguous() and not layout.is_negated:
                steps = [other.element_size() for other, _, _ in self.tensors]
                starts = [other.data_ptr() - self.begin for other, _, _ in self.tensors]
                are_aligned = not any(start % step for start, step in zip(starts, steps, strict=True))
                if tensor.dtype in _DTYPES and tensor.element_size() == max(steps) and are_aligned:
                    return tensor
        return None


@dataclass(frozen=True, slots=True)
class Plan:
    """The places of what has to be written."""

    header: bytes
    pieces: list[Piece]
    #: bytes in all
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
    pieces = _merge(survey)
    end, layouts = 0, []
    entries: dict[str, dict[str, Any]] = {}
    for number, piece in enumerate(pieces):
        whole = piece.whole
        padding = piece.begin % _ALIGNMENT if whole is None else 0
        size = piece.end - piece.begin if whole is not None else round_up(padding + piece.end - piece.begin, _ALIGNMENT)
        name = _name(piece, entries)
        entries[name] = {
            "dtype": "U8" if whole is None else _DTYPES[whole.dtype],
            "shape": [size] if whole is None else list(whole.shape),
            "data_offsets": [end, end + size],
        }
        layouts.append(PieceLayout(name, str(piece.device)))
        for tensor, layout, _ in piece.tensors:
            layout.piece, layout.start = number, padding + tensor.data_ptr() - piece.begin
        piece.offset = end + padding
        end += size
    header = pack(Layout(layouts, root), entries)
    for piece in pieces:
        piece.offset += len(header)
    return Plan(header, pieces, len(header) + end, [tensor for tensor, _, _ in survey.tensors])


def _name(piece: Piece, taken: Container[str]) -> str:
    """Return a name for a piece, by the first tensor in it."""
    place = piece.tensors[0][2] or "tensor"
    names = (f"{place}#{number}" if number else place for number in itertools.count())
    return next(name for name in names if name not in taken and name != "__metadata__")


class _Survey:
    """Walks through a value and collects its tensors."""

    def __init__(self) -> None:
        #: with their places, such as `layer.weight`
        self.tensors: list[tuple[torch.Tensor, TensorLayout, str]] = []
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
        self.tensors.append((tensor, layout, ".".join(step.strip("[]'\"") for step in path)))
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
    if kind is str and (value.isascii() or not _SURROGATES.search(value)):
        return value  # type: ignore[no-any-return]
    name = "text that is no valid Unicode" if kind is str else f"of the type {kind.__module__}.{kind.__qualname__}"
    raise TypeError(
        f"{what}{_at(path)} is {name.replace('builtins.', '')}; a shelf holds {_PLAIN}: take it out or turn it into "
        "one of these."
    )


def _at(path: tuple[str, ...]) -> str:
    return f" at {''.join(path)}" if path else ""


def _extent(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the address of a tensor's first byte and the one behind its last; None if it has no elements."""
    if tensor.numel() == 0:
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()


def _merge(survey: _Survey) -> list[Piece]:
    """Return the pieces that the tensors lie in, in the order of their places in a file."""
    found = [(str(each[0].device), *extent, each) for each in survey.tensors if (extent := _extent(each[0]))]
    pieces: list[Piece] = []
    for device, begin, end, each in sorted(found, key=lambda entry: entry[:3]):
        if not pieces or str(pieces[-1].device) != device or begin >= pieces[-1].end:
            pieces.append(Piece(torch.device(device), begin, end))
        pieces[-1].end = max(pieces[-1].end, end)
        pieces[-1].tensors.append(each)
    # As the format has it, without gaps: what is larger begins where it is aligned, and so does what comes after it.
    return sorted(pieces, key=lambda piece: -(_ALIGNMENT if piece.whole is None else piece.whole.element_size()))


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
