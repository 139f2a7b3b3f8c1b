"""Moving storages away by resizing them, on the processor's tensors: torch's calls are the same for a GPU's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from sharedkernel.ipc.shared_page import Page
from sharedkernel.session.memory.host_meter import HostMeter
from sharedkernel.session.offload import storages
from sharedkernel.session.offload.cuda import StorageMover
from sharedkernel.session.offload.host import CannotOffload, PendingOffload, RestoreFailed

MIB = 1 << 20


@pytest.fixture
def mover() -> StorageMover:
    return StorageMover(HostMeter(Page.create("test")), lambda: None, kind="cpu")


def away(mover: StorageMover) -> PendingOffload:
    pending = mover.prepare()
    pending.write()
    pending.commit()
    return pending


def losses(move: Callable[[torch.nn.Module], None]) -> list[float]:
    """Train a model with all that hangs on it; *move* is called after each step."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(64, 512)
    found = []
    for _ in range(4):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        move(model)
    return found


def test_a_training_goes_on_bit_by_bit(mover: StorageMover) -> None:
    """Parameters, views and Adam's state are gone meanwhile, and the same afterwards."""

    def move_away_and_back(model: torch.nn.Module) -> None:
        absent = away(mover)
        assert all(parameter.untyped_storage().nbytes() == 0 for parameter in model.parameters() if parameter.dim() > 1)
        assert absent.size > 3 * 512 * 512 * 4  # parameters and two moments
        absent.restore(lambda done: None)

    assert losses(move_away_and_back) == losses(lambda model: None)


def test_a_graph_made_before_gives_the_same_gradients(mover: StorageMover) -> None:
    """What autograd saved shares storages that Python can see."""
    weight = torch.randn(512, 512, requires_grad=True)
    view = weight[1:3]
    loss = (weight @ torch.ones(512, 512)).square().sum() + view.sum()
    (expected,) = torch.autograd.grad(loss, weight, retain_graph=True)
    expected = expected.clone()
    away(mover).restore(lambda done: None)
    (gradient,) = torch.autograd.grad(loss, weight)
    assert torch.equal(gradient, expected)
    assert view.data_ptr() == weight.data_ptr() + 512 * 4


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("CUDA out of memory. Tried to …")])
def test_a_way_back_that_is_cut_short_leaves_everything_away(mover: StorageMover, failure: BaseException) -> None:
    """And the next attempt brings all of it back."""
    kept = [torch.full((MIB,), float(number)) for number in range(3)]
    absent = away(mover)

    def interrupt(done: int) -> None:
        if done >= 4 * MIB:
            raise failure

    expected: type[BaseException] = RestoreFailed if isinstance(failure, RuntimeError) else type(failure)
    with pytest.raises(expected):
        absent.restore(interrupt)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in kept)
    absent.restore(lambda done: None)
    assert [tensor[0].item() for tensor in kept] == [0.0, 1.0, 2.0]


def test_a_section_that_opens_stops_it(mover: StorageMover) -> None:
    """Nothing was changed then."""
    kept = torch.ones(MIB)
    pending = mover.prepare()
    pending.stop()
    with pytest.raises(CannotOffload) as caught:
        pending.write()
    pending.abort()
    assert caught.value.reason == "busy"
    assert kept.sum().item() == MIB


def test_nothing_moves_where_an_address_may_be_remembered(mover: StorageMover, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that shares memory by its address would go on to use the old one."""
    kept = torch.ones(MIB)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    with pytest.raises(CannotOffload, match="cupy") as caught:
        mover.prepare()
    assert caught.value.reason == "unsafe"
    assert len(kept) == MIB


def test_cuda_graphs_keep_everything_where_it_is(mover: StorageMover) -> None:
    """They replay with the addresses they were captured with."""

    class CUDAGraph:  # of torch's name; a CPU build has none
        def __init__(self) -> None:
            self.captured: list[Any] = []

    graph = CUDAGraph()
    with pytest.raises(CannotOffload, match="CUDA graphs"):
        mover.prepare()
    assert graph.captured == []


def test_what_cannot_be_resized_stays_and_is_told(mover: StorageMover) -> None:
    """An array of another library that a tensor looks at has no storage of torch's."""
    foreign = torch.frombuffer(bytearray(8 * MIB), dtype=torch.uint8)
    own = torch.ones(MIB)
    movable, kept, _ = storages.movable_storages("cpu")
    addresses = {storage.data_ptr() for storage in movable}
    assert own.data_ptr() in addresses
    assert foreign.data_ptr() not in addresses
    assert kept[storages.FIXED] >= 8 * MIB
    absent = away(mover)
    assert "8.0 MiB that cannot be resized" in (mover.why_kept() or "")
    absent.restore(lambda done: None)
