"""Real training loops, and what they allocate and free: recorded by torch's profiler on the CPU.

The order and the sizes of allocations are those of the same loop on a GPU, but for scratch memory inside operations.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

_BOUNDARY = "test-boundary"


@dataclass(frozen=True, slots=True)
class Allocated:
    """A block was allocated; `block` is named once in a trace."""

    block: int
    size: int


@dataclass(frozen=True, slots=True)
class Freed:
    block: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """One iteration is over: right after `zero_grad`."""


Step = Allocated | Freed | Boundary


class _Transformer(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


#: width, layers, and the shape of each batch
Loop = tuple[int, int, Callable[[int], tuple[int, int]]]
STATIC: Loop = (192, 2, lambda number: (24, 64))
VARYING: Loop = (128, 4, lambda number: (4 + number * 7 % 13, 16 + number * 11 % 33))


@functools.cache
def record(loop: Loop, iterations: int) -> tuple[Step, ...]:
    """Train with Adam and return what was allocated, the model's parameters first.

    The last loss is kept over each boundary, as loops that print it do.
    """
    width, layers, shape = loop
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            model = _Transformer(width, layers)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            losses = []
            for number in range(iterations):
                inputs = torch.randint(1000, shape(number))
                loss = nn.functional.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses = [loss.detach()]
                with record_function(_BOUNDARY):
                    pass
    finally:
        torch.set_num_threads(threads)
    assert losses[0].isfinite()
    return tuple(_steps(profiler))


def _steps(profiler: Any) -> Iterator[Step]:
    """Put the profiler's events in order, and name the blocks by number."""
    events = []
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending += event.children
        if event.name == "[memory]" or event.name == _BOUNDARY:
            events.append(event)
    events.sort(key=lambda event: event.start_time_ns)
    numbers = itertools.count()
    living: dict[int, int] = {}
    for event in events:
        if event.name == _BOUNDARY:
            yield Boundary()
            continue
        fields = event.extra_fields
        if fields.alloc_size > 0:
            living[fields.ptr] = next(numbers)
            yield Allocated(living[fields.ptr], fields.alloc_size)
        elif fields.ptr in living:
            yield Freed(living.pop(fields.ptr))
