"""What of a process's tensors can be moved, and what stays for which reason."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from sharedkernel.session.offload import storages
from sharedkernel.session.offload.storages import (
    LAZY,
    MAPPED,
    OTHER,
    PAGE_BYTES,
    SHARED,
    SMALL,
    Mappings,
    Survey,
    survey,
)

MIB = 1 << 20


def moves(tensor: torch.Tensor, found: Survey) -> int:
    """Return how many bytes of the memory of *tensor* are in *found*."""
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    end = start + storage.nbytes()
    return sum(max(0, min(region.address + region.size, end) - max(region.address, start)) for region in found.regions)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(numpy.ones(MIB, dtype="f4")),
        lambda: torch.frombuffer(bytearray(4 * MIB), dtype=torch.float32),
        lambda: torch.nn.Parameter(torch.ones(MIB)),
        lambda: torch.ones(MIB)[5:-5].view(-1, 2).t(),
    ],
    ids=["NumPy's", "a buffer", "parameter", "view"],
)
def test_tensors_move(make: Callable[[], torch.Tensor]) -> None:
    """All whole pages of a tensor's memory move, whoever allocated it."""
    tensor = make()
    assert moves(tensor, survey()) > 4 * MIB - 2 * PAGE_BYTES


def mapped(directory: Path) -> torch.Tensor:
    torch.save(torch.ones(MIB), directory / "tensor.pt")
    tensor = torch.load(directory / "tensor.pt", mmap=True)
    assert isinstance(tensor, torch.Tensor)
    return tensor


def test_gradients_move_that_python_never_looked_at() -> None:
    """The gradients of a model are found by its parameters."""
    model = torch.nn.Linear(1024, 1024)
    model(torch.ones(1, 1024)).sum().backward()
    gc.collect()
    found = survey()
    assert model.weight.grad is not None
    assert moves(model.weight.grad, found) > 3 * MIB


def test_the_parts_of_sparse_tensors_move() -> None:
    """Indices and values are memory like any other."""
    size = MIB // 4
    coordinates = torch.sparse_coo_tensor(torch.arange(size).repeat(1, 1), torch.ones(size), check_invariants=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "in beta state"
        compressed = torch.ones(512, 512).to_sparse_csr()
    found = survey()
    for part in (coordinates._indices(), coordinates._values(), compressed.col_indices(), compressed.values()):
        assert moves(part, found) > part.untyped_storage().nbytes() - 2 * PAGE_BYTES


def test_two_views_of_one_array_move_once() -> None:
    """Overlapping memory of two storages is one region."""
    array = numpy.ones(4 * MIB, dtype="u1")
    first, second = torch.from_numpy(array), torch.from_numpy(array[MIB:])
    found = survey()
    assert moves(first, found) <= 4 * MIB
    assert moves(second, found) > 3 * MIB - 2 * PAGE_BYTES
    ends = [(region.address, region.address + region.size) for region in found.regions]
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda tmp: torch.ones(MIB).share_memory_(), SHARED),
        (lambda tmp: mapped(tmp), MAPPED),
        (lambda tmp: torch.from_numpy(numpy.memmap(tmp / "array", dtype="f4", mode="w+", shape=MIB)), SHARED),
        (lambda tmp: torch._lazy_clone(torch.ones(MIB)), LAZY),
    ],
    ids=["shared", "mapped file", "memmap", "lazy clone"],
)
def test_what_stays_is_counted_by_its_reason(make, reason: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Memory that cannot be moved is told with its size; nothing of it moves."""
    before = survey()
    tensor = make(tmp_path)
    found = survey()
    assert found.kept.get(reason, 0) - before.kept.get(reason, 0) == pytest.approx(4 * MIB, abs=PAGE_BYTES)
    if reason == LAZY:
        assert torch._C._is_cow_tensor(tensor)  # type: ignore[attr-defined]  # looking did not make the copy
    else:
        assert moves(tensor, found) == 0


def test_small_tensors_stay() -> None:
    """A storage with less than sixteen whole pages is not worth a mapping of its own."""
    before = survey()
    small = [torch.ones(storages.SMALLEST // 8) for _ in range(100)]
    found = survey()
    assert found.kept[SMALL] - before.kept.get(SMALL, 0) >= 100 * storages.SMALLEST // 2
    assert not any(moves(tensor, found) for tensor in small)


def test_looking_asks_nothing_of_modes_and_subclasses() -> None:
    """No operation is dispatched, so that looking never asks for the device."""
    seen: list[object] = []

    class Noisy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    sparse = torch.sparse_coo_tensor(torch.arange(9).repeat(1, 1), torch.ones(9), check_invariants=False)
    with Noisy():
        survey()
    assert seen == []
    assert sparse.is_sparse


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (0x2000, 0x5000, None),
        (0x2000, 0x5001, OTHER),
        (0x1000, 0x2000, OTHER),
        (0x5000, 0x6000, OTHER),
        (0x7000, 0x7800, MAPPED),
        (0x8000, 0x8001, SHARED),
        (0x2FFF, 0x3001, None),
    ],
)
def test_kinds_of_memory(start: int, end: int, reason: str | None) -> None:
    """Private writable memory moves, also across neighbours; gaps and all else do not."""
    mappings = Mappings(
        [
            "2000-3000 rw-p 00000000 00:00 0                          [heap]",
            "3000-5000 rw-p 00000000 00:00 0 ",
            "5000-6000 r--p 00000000 00:00 0 ",
            "7000-8000 rw-p 00000000 fe:00 1234                       /a file with spaces",
            "8000-9000 rw-s 00000000 00:01 77                         /dev/shm/x (deleted)",
        ]
    )
    assert mappings.why_not(start, end) == reason
