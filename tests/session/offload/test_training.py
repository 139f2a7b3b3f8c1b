"""Trainings whose memory is moved away and back many times compute the same numbers, bit by bit.

Undisturbed and disturbed runs alternate nothing but that: same seeds, same data. The memory goes and comes between two
iterations, as it does between two cells, at random points.
"""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sharedkernel.session.offload.host import RegionOffload
from sharedkernel.session.offload.storages import survey

#: how often memory is moved; all of it takes minutes
TIMES = [15, pytest.param(100, marks=pytest.mark.slow)]
ITERATIONS = 120

Loss = Callable[[], float]


def data_loader_with_workers() -> Iterator[Loss]:
    """Have workers that are forked before memory is moved, live on, and read their copy of the data set."""
    model = nn.Linear(256, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(1024, 256), torch.randint(10, (1024,)))
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
    batches = iter(loader)

    def iterate() -> float:
        nonlocal batches
        try:
            inputs, labels = next(batches)
        except StopIteration:
            batches = iter(loader)
            inputs, labels = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    yield iterate
    batches._shutdown_workers()  # type: ignore[attr-defined]


def losses(disturb: Callable[[], None], disturbed: set[int]) -> list[float]:
    """Return the loss of each of :data:`ITERATIONS` iterations, with *disturb* called before those in *disturbed*."""
    torch.manual_seed(7)
    found = []
    for iterate in data_loader_with_workers():
        for number in range(ITERATIONS):
            if number in disturbed:
                disturb()
            found.append(iterate())
    return found


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.heavy
def test_the_loss_is_the_same_to_the_bit(times: int, directory: Path) -> None:
    """Moved away and back again and again, at random points, a training has the losses of an undisturbed one."""
    gc.collect()
    moved: list[int] = []

    def move_away_and_back() -> None:
        pending = RegionOffload(survey(), directory)
        pending.write()
        pending.commit()
        moved.append(pending.size)
        pending.restore(lambda done: None)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads around
            undisturbed = losses(move_away_and_back, set())
            points = set(random.Random(7).sample(range(ITERATIONS), times))
            disturbed = losses(move_away_and_back, points)
    finally:
        torch.set_num_threads(threads)
    assert disturbed == undisturbed
    assert len(moved) == times
    assert min(moved) > 64 << 10
