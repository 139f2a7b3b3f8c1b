"""How far loops and bars say a cell is."""

from __future__ import annotations

import contextlib
import io
import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

from sharedkernel.session.progress.progress import Counter, Progress, fraction_done


@pytest.fixture(scope="module")
def installed() -> Progress:
    """Return what looks at the loops of this process from now on."""
    progress = Progress()
    progress.install()
    return progress


@pytest.fixture
def progress(installed: Progress) -> Progress:
    """Return it at the beginning of a section."""
    installed.section_began()
    return installed


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what runs a source as a kernel does, in a main module of its own, with names."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run(source: str, **names: object) -> None:
        vars(main).update(tqdm=partial(tqdm, file=io.StringIO()), **names)
        exec(compile(source, "<cell>", "exec"), vars(main))

    return run


def seen(progress: Progress) -> list[tuple[int, int]]:
    return [(counter.total, counter.started) for counter in progress.counters()]


#: loops that call `look` each time, and what is seen then
LOOPS = {
    "range": ("for i in range(3): look()", [[(3, 1)], [(3, 2)], [(3, 3)]]),
    "left early": ("for i in range(2):\n  for j in range(5):\n    break\n  look()", [[(2, 1)], [(2, 2)]]),
    "returned from": ("def f():\n  for i in range(5):\n    return\nf()\nlook()", [[]]),
    "ended by an error": (
        "for i in range(2):\n  try:\n    for j in (1,):\n      1 / 0\n  except ZeroDivisionError:\n    look()",
        [[(2, 1)], [(2, 2)]],
    ),
    "step": ("for i in range(0, 100, 50): look()", [[(2, 1)], [(2, 2)]]),
    "last of a list": ("for i in reversed([1, 2]): look()", [[(2, 1)], [(2, 2)]]),
    "user's sequence": (
        "class A:\n  def __len__(self): 1 / 0\n  def __getitem__(self, i): return (1, 2)[i]\n"
        "class B(A):\n  def __len__(self): return 2\n  def __iter__(self): return iter([1, 2])\n"
        "for i in A(): look()\nfor i in reversed(B()): look()\nfor i in B(): look()",
        [[], [], [], [], [(2, 1)], [(2, 2)]],
    ),
    "dict": ("for i, j in {1: 2, 3: 4}.items(): look()", [[(2, 1)], [(2, 2)]]),
    "enumerate": ("for i, j in enumerate(range(2)): look()", [[(2, 1)], [(2, 2)]]),
    "zip": ("for i, j in zip(range(9), [1, 2]): look()", [[(2, 1)], [(2, 2)]]),
    "function": ("def f():\n  for i in [1, 2]: look()\nfor k in range(1): f()", [[(1, 1), (2, 1)], [(1, 1), (2, 2)]]),
    "method": (
        "class A:\n  def f(self, x=1, *a, **k):\n    def g(): return x\n    for i in [1, 2]: look()\nA().f()",
        [[(2, 1)], [(2, 2)]],
    ),
    "generator": (
        "def f():\n  for i in range(0, 4, 2): yield i\nfor epoch in range(1):\n  for x in f(): look()",
        [[(1, 1), (2, 1)], [(1, 1), (2, 2)]],
    ),
    "within a generator": ("def f():\n  for i in range(2):\n    look()\n    yield\nlist(f())", [[(2, 1)], [(2, 2)]]),
    "comprehension": ("[look() for i in range(2)]", [[(2, 1)], [(2, 2)]]),
    "with": (
        "import contextlib\nfor i in range(2):\n  with contextlib.nullcontext():\n    for j in range(1): look()",
        [[(2, 1), (1, 1)], [(2, 2), (1, 1)]],
    ),
    "while": ("n = 2\nwhile n:\n  n -= 1\n  look()", [[], []]),
    "coroutine": (
        "async def f():\n  for i in range(2): look()\nc = f()\ntry: c.send(None)\nexcept StopIteration: pass",
        [[(2, 1)], [(2, 2)]],
    ),
    "user's iterator": (
        "class A:\n  n = 3\n  def __iter__(self): return self\n  def __next__(self):\n    self.n -= 1\n"
        "    if not self.n: raise StopIteration\nfor i in A(): look()",
        [[], []],
    ),
}


@pytest.mark.parametrize(("source", "expected"), LOOPS.values(), ids=LOOPS)
def test_loops_are_seen_as_they_run(
    progress: Progress, run: Callable[..., None], source: str, expected: list[list[tuple[int, int]]]
) -> None:
    """Each as long as it runs, with what it has left; one that does not show that is no progress."""
    looks: list[list[tuple[int, int]]] = []
    run(source, look=lambda: looks.append(seen(progress)))
    assert looks == expected
    assert seen(progress) == []


def test_nothing_is_kept_of_what_is_looked_at(progress: Progress, run: Callable[..., None]) -> None:
    """Neither iterators nor what they give live longer for it."""
    items: list[set[int]] = [set(), set()]  # to which weak references may refer
    alive = [weakref.ref(item) for item in items]
    run("for item in iter(items): look()", items=items, look=progress.counters)
    run("del items, item")
    items.clear()
    assert [reference() for reference in alive] == [None, None]


def test_what_a_generator_does_as_it_is_closed_is_not_looked_at(progress: Progress, run: Callable[..., None]) -> None:
    """An error takes the loops around it away meanwhile, and their iterators may be gone already."""
    looks: list[list[tuple[int, int]]] = []
    run(
        "def f():\n"
        "    try:\n"
        "        for i in range(5): yield\n"
        "    finally: look()\n"
        "class A:\n"
        "    def __iter__(self): return self\n"
        "    def __next__(self): pass\n"
        "    def __del__(self): look()\n"
        "def g(items):\n"
        "    for i in items:\n"
        "        for j in range(3): 1 / 0\n"
        "for items in (f(), A()):\n"
        "    try: g(items)\n"
        "    except ZeroDivisionError: pass\n"
        "    del items\n",
        look=lambda: looks.append(seen(progress)),
    )
    assert looks == [[], []]


def test_items_are_counted_of_the_loops_that_ran_before_too(progress: Progress, run: Callable[..., None]) -> None:
    """Of the innermost one that has gone on; a loop that began since counts nothing yet."""
    passed: list[int] = []
    run(
        "for i in range(3):\n    look()\n    for j in range(4):\n        if j % 2: look()\n",
        look=lambda: passed.append(progress.items_passed()),
    )
    assert passed == [0, 0, 2, 1, 0, 2, 1, 0, 2]


def test_loaders_and_bars_are_seen(progress: Progress, run: Callable[..., None]) -> None:
    """Also iterators that `tqdm.auto` makes and does not use count nothing, and bars of other sections do not."""
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
    looks: list[list[tuple[int, int]]] = []
    look = {"loader": loader, "look": lambda: looks.append(seen(progress))}
    run("for epoch in range(3):\n  for i, _ in enumerate(tqdm(loader, disable=True)):\n    if i == 1: look()", **look)
    assert looks == [[(3, 1), (4, 2)], [(3, 2), (4, 2)], [(3, 3), (4, 2)]]
    looks.clear()
    run("batches = iter(loader)\nfor i in range(2):\n  next(batches)\n  look()", **look)
    assert looks == [[(2, 1), (4, 1)], [(2, 2), (4, 2)]]
    run("del batches")
    with contextlib.closing(tqdm(total=10)) as bar:
        bar.update(3)
        assert seen(progress) == [(10, 4)]
        progress.section_began()
        assert seen(progress) == []


def test_what_is_inside_is_a_part_of_one_item_outside() -> None:
    """A bar around a loader, which counts the same, is off by one item at most."""
    epochs, batches = Counter("e", 0.0, 10, 3), Counter("b", 1.0, 4, 3)
    assert fraction_done([epochs, batches]) == pytest.approx((2 + 2 / 4) / 10)
    bar = Counter("bar", 0.5, 4, 3)
    assert fraction_done([bar, batches]) == pytest.approx(2 / 4, abs=1 / 4)
    assert fraction_done([]) == 0.0
    assert fraction_done([Counter("e", 0.0, 1, 1), Counter("b", 1.0, 1, 1)]) == 0.0
