"""How far loops and bars say a cell is."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

from sharedkernel.session import loops
from sharedkernel.session.progress import Counter, Progress, fraction_done


@pytest.fixture(scope="module")
def installed() -> Progress:
    """Return what looks at the loops of this process from now on."""
    loops.watch(None)
    progress = Progress()
    progress.install()
    return progress


@pytest.fixture
def progress(installed: Progress) -> Progress:
    """Return it at the beginning of a section."""
    installed.section_began()
    return installed


def run(source: str, **names: object) -> None:
    """Run *source* as a cell would be."""
    tree = ast.fix_missing_locations(loops.LoopReporter().visit(ast.parse(source)))
    exec(compile(tree, "<cell>", "exec"), {"tqdm": tqdm, **names})


def seen(progress: Progress) -> list[tuple[int, int]]:
    return [(counter.total, counter.started) for counter in progress.counters()]


def test_a_range_is_seen_as_long_as_its_loop_runs(progress: Progress) -> None:
    """However the loop ends: it is over, also when it was left early."""
    looks: list[list[tuple[int, int]]] = []

    def look() -> None:
        looks.append(seen(progress))

    run(
        "def f():\n"
        "    for i in range(5):\n"
        "        look()\n"
        "        if i == 1: return\n"
        "for epoch in range(2):\n"
        "    f()\n"
        "look()\n"
        "for i in range(3):\n"
        "    look()\n"
        "    break\n"
        "look()\n",
        look=look,
    )
    inner = [[(2, 1), (5, 1)], [(2, 1), (5, 2)], [(2, 2), (5, 1)], [(2, 2), (5, 2)]]
    assert looks == [*inner, [], [(3, 1)], []]


def test_loops_inside_loops_are_left_alone_unless_they_train(progress: Progress) -> None:
    """A short loop that begins a million times pays nothing."""
    looks: list[list[tuple[int, int]]] = []

    def look(*_: object) -> None:
        looks.append(seen(progress))

    run("for i in range(2):\n    for j in range(3): look(j)", look=look)
    assert looks == 3 * [[(2, 1)]] + 3 * [[(2, 2)]]
    looks.clear()

    class Optimizer:
        step = staticmethod(look)

    run("for i in range(2):\n    for j in range(3): optimizer.step()", optimizer=Optimizer())
    assert looks[4] == [(2, 2), (3, 2)]


def test_loaders_and_bars_are_seen(progress: Progress) -> None:
    """Also iterators that `tqdm.auto` makes and does not use count nothing, and bars of other sections do not."""
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
    looks = []
    for i, _ in enumerate(tqdm(loader, disable=True)):
        if i == 1:
            looks.append(seen(progress))
    assert looks == [[(4, 2)]]
    with contextlib.closing(tqdm(total=10)) as bar:
        bar.update(3)
        assert seen(progress) == [(10, 4)]
        progress.section_began()
        assert seen(progress) == []


@pytest.mark.parametrize("wrap", [lambda items: items, tqdm], ids=["range", "tqdm"])
def test_a_range_of_tqdm_is_left_to_its_bar(progress: Progress, wrap: Callable[[range], object]) -> None:
    """What is not written as `range(…)` itself is not touched."""
    run("for i in items: pass", items=wrap(range(3)))
    assert seen(progress) == []


def test_what_is_inside_is_a_part_of_one_item_outside() -> None:
    """A bar around a loader, which counts the same, is off by one item at most."""
    epochs, batches = Counter("e", 0.0, 10, 3), Counter("b", 1.0, 4, 3)
    assert fraction_done([epochs, batches]) == pytest.approx((2 + 2 / 4) / 10)
    bar = Counter("bar", 0.5, 4, 3)
    assert fraction_done([bar, batches]) == pytest.approx(2 / 4, abs=1 / 4)
    assert fraction_done([]) == 0.0
    assert fraction_done([Counter("e", 0.0, 1, 1), Counter("b", 1.0, 1, 1)]) == 0.0
