"""What a shelf holds comes back as it was, sharing what it shared; what it does not hold is said with its place."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.errors import SharedKernelError
from sharedkernel.paths import SHELF_DIRECTORY
from sharedkernel.session.memory.host_meter import private_bytes
from sharedkernel.shelf import layout, memory
from sharedkernel.shelf.memory import bytes_mapped_alone

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    """Draw a tensor of any type and shape, sometimes a view with odd strides and bits."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    tensor = torch.randint(0, 2, [2 * size for size in shape]).to(dtype)
    for dimension in range(len(shape)):
        tensor = tensor.narrow(dimension, draw(st.integers(0, shape[dimension])), shape[dimension])
        if draw(st.booleans()):
            tensor = tensor.unfold(dimension, 1, 2).squeeze(-1) if shape[dimension] else tensor
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    return tensor.conj() if dtype.is_complex and draw(st.booleans()) else tensor


plain = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
    | st.integers(-(1 << 90), 1 << 90)
)  # fmt: skip
keys = st.text() | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False) | st.binary()
values = st.recursive(
    plain | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


def written(value: Any) -> mmap.mmap:
    """Return a file with *value* in it, mapped; it goes with the mapping."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, SHELF_DIRECTORY, "value.safetensors")
        path.parent.mkdir()
        planned = memory.plan(value)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(descriptor, 0, planned.size)
            memory.write(planned, descriptor)
            return memory.map_shared(descriptor)
        finally:
            os.close(descriptor)


def round_trip(value: Any, *, private: bool = False) -> Any:
    """Write *value* and read it again."""
    return layout.read(written(value), private=private)


def assert_same(found: Any, expected: Any) -> None:
    """Compare two values, bit by bit where they are tensors."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.numel():
            assert found.stride() == expected.stride()
            raw = [
                torch.empty(each.numel(), dtype=each.dtype).copy_(each.reshape(-1)).view(torch.uint8)
                for each in (found, expected)
            ]
            assert torch.equal(*raw)
        assert not found.requires_grad
    elif isinstance(expected, dict):
        assert [*map(repr, found)] == [*map(repr, expected)]
        for one, other in zip(found.values(), expected.values(), strict=True):
            assert_same(one, other)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert repr(found) == repr(expected)


@given(values, st.booleans())
def test_a_value_comes_back_as_it_was(value: Any, private: bool) -> None:
    """Types, shapes, strides, order of keys, numbers of any size; lying on the shelf or as copies."""
    assert_same(round_trip(value, private=private), value)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(1, 4)), min_size=1, max_size=6),
    st.booleans(),
)
def test_what_shared_memory_shares_it_again(windows: list[tuple[int, int, int]], private: bool) -> None:
    """Views of one tensor, overlapping or not: to write through one changes the others as it did before."""
    base = torch.arange(250)
    views = [base[start : start + count * step : step] for start, count, step in windows]
    found = round_trip(views, private=private)
    for index in range(len(views)):
        views[index].fill_(-index)
        found[index].fill_(-index)
        assert_same(found, views)


def test_a_small_view_takes_little_of_the_shelf() -> None:
    """Only what lies between its first and its last element is written."""
    assert memory.plan(torch.zeros(1 << 20)[5:10]).size <= 4096


def test_views_of_other_types_and_odd_addresses_come_back() -> None:
    """Bytes seen as numbers share their memory; a number where none can begin is copied."""
    raw = torch.arange(64, dtype=torch.uint8)
    value = [raw[1:33], raw[4:20].view(torch.float32), torch.frombuffer(bytearray(33), dtype=torch.float32, offset=1)]
    found = round_trip(value)
    assert_same(found, value)
    found[0][3:19] = 0
    assert found[1].abs().sum() == 0
    negated = torch.ones(3, dtype=torch.complex64).mul(1j).conj().imag
    assert negated.is_neg()
    assert torch.equal(round_trip(negated), negated)


def test_a_state_dict_keeps_the_versions_of_its_modules() -> None:
    """`load_state_dict` needs them; parameters come back as tensors that want no gradient."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    found = round_trip(model.state_dict())
    assert found._metadata == model.state_dict()._metadata
    assert model.load_state_dict(found).missing_keys == []
    parameter = round_trip(next(model.parameters()))
    assert type(parameter) is torch.Tensor
    assert not parameter.requires_grad


Point = namedtuple("Point", "x y")


class Strange(torch.Tensor):
    """A tensor of a user's own."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: 1, "the value is of the type function; a shelf holds tensors"),
        ({"a": [1, {2}]}, "the value at ['a'][1] is of the type set"),
        ({"a": {(1, 2): 3}}, "the key (1, 2) of the value at ['a'] is of the type tuple"),
        ([numpy.ones(3)], "the value at [0] is of the type numpy.ndarray"),
        ([numpy.float64(3)], "the value at [0] is of the type numpy.float64"),
        (Point(1, 2), "the value is of the type tests.shelf.test_layout.Point"),
        (["\ud800"], "the value at [0] is text that is no valid Unicode"),
        ([torch.ones(3).to_sparse()], "the tensor at [0] is not dense (torch.sparse_coo); shelve `tensor.to_dense()`"),
        ({"q": torch.ones(3, device="meta")}, "the tensor at ['q'] is on the device meta"),
        ([torch.ones(3).as_subclass(Strange)], "the tensor at [0] is a Strange, not a plain tensor"),
    ],
)
def test_what_a_shelf_does_not_hold_is_said_with_its_place(value: Any, expected: str) -> None:
    """One sentence: where it is, what it is, and what to do."""
    with pytest.raises(TypeError) as raised:
        memory.plan(value)
    assert expected in str(raised.value)
    assert str(raised.value).endswith(".")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:FutureWarning", "ignore::UserWarning")
def test_quantized_and_nested_tensors_are_refused() -> None:
    """With what to shelve in their place."""
    with pytest.raises(TypeError, match=r"is quantized; shelve `tensor\.dequantize"):
        memory.plan(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    with pytest.raises(TypeError, match=r"is nested; shelve the list `tensor.unbind\(\)`"):
        memory.plan(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))


def test_what_has_no_end_is_refused() -> None:
    """A list in itself, and one nested too deeply."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="contains itself"):
        memory.plan(endless)
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        memory.plan(deep)


@given(st.integers(0, 300), st.binary(min_size=1, max_size=20))
def test_damaged_memory_is_told_and_breaks_nothing(place: int, damage: bytes) -> None:
    """Whatever bytes lie there, reading gives a value or one error."""
    mapped = written({"a": torch.arange(10.0), "b": [1, "two", torch.ones(2, 2)]})
    mapped[place : place + len(damage)] = damage
    try:
        value = layout.read(mapped)
    except SharedKernelError as error:
        assert "cannot be read" in str(error)  # noqa: PT017 (either is right)
    else:
        repr(value)


def test_memory_of_a_shelf_is_not_the_process_own() -> None:
    """The meter leaves out what the system counts as private because nobody else has it mapped just now."""
    value = written(torch.ones(1 << 24))
    before, alone = private_bytes(), bytes_mapped_alone()
    tensor = layout.read(value)
    assert float(tensor.sum()) == 1 << 24
    assert bytes_mapped_alone() - alone >= 1 << 26
    assert private_bytes() - before < 1 << 25
    del value, tensor
    assert bytes_mapped_alone() == alone


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    """An address where nothing is, as of memory that the user's code has freed."""
    plan = memory.plan(torch.ones(100))
    plan.pieces[0].end = plan.pieces[0].begin + (1 << 62)
    plan.pieces[0].begin = 8
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="Bad address"):
        memory.write(plan, file.fileno())


def tensors_of(mapped: mmap.mmap) -> dict[str, torch.Tensor]:
    """Return what any program that reads safetensors finds: all that the format says of a file holds."""
    length = int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8 : 8 + length])
    assert (8 + length) % 64 == 0
    assert all(isinstance(text, str) for text in header.pop("__metadata__").values())
    end, found = 0, {}
    for name, entry in header.items():
        begin, last = entry["data_offsets"]
        assert begin == end  # no gaps, in the order of the header
        dtype = {each: torch_type for torch_type, each in memory._DTYPES.items()}[entry["dtype"]]
        assert begin % dtype.itemsize == 0
        raw = torch.frombuffer(mapped, dtype=torch.uint8, count=last - begin, offset=8 + length + begin)
        found[name] = raw.view(dtype).reshape(entry["shape"])
        end = last
    assert 8 + length + end == len(mapped)
    return found


def test_a_state_dict_is_one_for_any_program() -> None:
    """By the names of its parameters, with their types and shapes, whatever their sizes."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1).half())
    state = model.state_dict()
    found = tensors_of(written(state))
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert_same(found[name], tensor)


@given(values)
def test_every_file_is_a_safetensors_file(value: Any) -> None:
    """Without gaps, all tensors aligned, each byte in one of them."""
    found = tensors_of(written([value, torch.ones(3)]))
    assert torch.ones(3).tolist() in [tensor.tolist() for tensor in found.values()]
