"""Plans where the tensors of a value go in the shelf's memory: the pieces, and the layout before them.

What a shelf does not hold is refused here, with a sentence that says where it is and what to do. `layout.py` describes
the layout.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from sharedkernel.shelf.layout import (
    ALIGNMENT,
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
    round_up,
)

#: dicts, lists and tuples within each other, at most
DEEPEST = 100

_PLAIN = "tensors, numbers, text, bytes and None in dicts, lists and tuples"


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
        end = round_up(piece.offset + piece.end - piece.begin, ALIGNMENT)
    header = pack(Layout(layouts, root))
    first = round_up(len(header), ALIGNMENT)
    for piece in pieces:
        piece.offset += first
    return Plan(header, pieces, round_up(first + end, mmap.PAGESIZE), survey.tensors)


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
