"""The progress of a cell, as its own loops and progress bars show: nothing of it costs anything per iteration.

Looked at are, outermost first:

- the `for` loops that run (:mod:`.running_loops`): over ranges, containers, generators over these, and over a
  `torch.utils.data.DataLoader`, whose iterators count what they gave out;
- other iterators of a `DataLoader`;
- bars of `tqdm` (`tqdm.std`, and so `auto` and `notebook`) that have a total;
- :func:`sharedkernel.iterations` over something that has a length.

Each is a :class:`Counter`: what of the inner one is done is a part of one item of the outer one. Two that count the
same items, such as a bar around a loader, disagree by one item at most, so which are nested need not be known.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

from sharedkernel.session.progress.running_loops import RunningLoop, left, running_loops, size

#: bytes of a hash: enough that no two sources of anybody's are ever the same by chance
_HASH_BYTES = 16


@dataclass(slots=True)
class Counter:
    """One loop or bar."""

    #: the same for each run of the same loop
    place: Hashable
    #: seconds since 1970
    began: float
    #: items in all, at least 1
    total: int
    #: items that were begun, the one that is worked on included
    started: int


@dataclass(slots=True)
class _Run:
    """One run of a loop, from the look that saw it first."""

    #: seconds since 1970: the look before, which did not see it, and the one that did
    after: float
    seen: float
    total: int
    left: int


class Progress:
    """Sees the loops and bars of one session."""

    def __init__(self) -> None:
        #: runs that the last look saw, by place and the iterator's address
        self._runs: dict[tuple[Hashable, int], _Run] = {}
        self._looked = 0.0
        #: when each live iterator of a DataLoader was made
        self._loaders: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._said: list[Counter] = []
        #: what the last call of :meth:`items_passed` saw
        self._counted: list[Counter] = []
        self._since = 0.0

    def install(self) -> None:
        """Look at loaders from now on, for the life of the process."""
        original = dataloader._BaseDataLoaderIter.__init__

        def began(iterator: Any, *args: Any, **keywords: Any) -> None:
            original(iterator, *args, **keywords)
            self._loaders[iterator] = time.time()

        dataloader._BaseDataLoaderIter.__init__ = began  # type: ignore[assignment,method-assign]

    def section_began(self) -> None:
        """Forget what began before: other code runs now."""
        self._since = self._looked = time.time()
        self._runs.clear()
        self._said.clear()
        self._counted.clear()

    def say(self, place: Hashable, total: int) -> Counter:
        """Return a counter for a loop that counts by itself, until :meth:`unsay`.

        Parameters
        ----------
        place
            What identifies the loop.
        total
            Its number of iterations.
        """
        counter = Counter(place, time.time(), total, 0)
        self._said.append(counter)
        return counter

    def unsay(self, counter: Counter) -> None:
        """Remove the *counter* of a loop that has ended."""
        with contextlib.suppress(ValueError):  # its section is over
            self._said.remove(counter)

    def counters(self) -> list[Counter]:
        """Return what counts in the running section, the outermost first (in the thread that runs it)."""
        running = running_loops()
        of_loops, on_stack = self._of_loops(running), {id(loop.iterator) for loop in running}
        del running
        others = [*self._of_loaders(on_stack), *self._of_bars(), *self._said]
        found = of_loops + [(counter.began, counter) for counter in others if counter.began >= self._since]
        # What was made and is not iterated over is no loop: `tqdm.auto` makes an iterator that it may never use.
        return [counter for _, counter in sorted(found, key=lambda entry: entry[0]) if counter.started]

    def items_passed(self) -> int:
        """Return how many items of the innermost loop that ran at the last call, too, were finished since."""
        counters, before = self.counters(), self._counted
        self._counted = counters
        items = 0
        for now, then in zip(counters, before, strict=False):
            if (now.place, now.total) != (then.place, then.total):
                break
            items = items * now.total + now.started - then.started
        return max(0, items)

    def _of_loops(self, running: list[RunningLoop]) -> list[tuple[float, Counter]]:
        """Return the counters of *running* loops, each with a time by which none of those outside of it began later."""
        now, seen = time.time(), self._runs
        self._runs = {}
        latest, found = 0.0, []
        for loop in running:
            key = loop.place, id(loop.iterator)
            if loop.is_loader:
                counter = self._of_loader(loop.iterator, self._loaders.get(loop.iterator, now))
                run = seen.get(key) or _Run(self._looked, now, 0, 0)
            else:
                run = self._run(loop.iterator, seen.get(key), now)
                counter = Counter(loop.place, run.seen, run.total, run.total - run.left)
            self._runs[key] = run
            latest = max(latest, run.after)
            if counter is not None:
                found.append((latest, counter))
        self._looked = now
        return found

    def _run(self, iterator: Any, seen: _Run | None, now: float) -> _Run:
        remaining = left(iterator)
        if seen is None or remaining > seen.left:  # another iterator may lie where one was
            return _Run(self._looked, now, max(1, remaining, size(iterator)), remaining)
        seen.left = remaining
        return seen

    def _of_loaders(self, known: set[int]) -> Iterator[Counter]:
        for iterator, began in list(self._loaders.items()):
            if id(iterator) not in known and (counter := self._of_loader(iterator, began)) is not None:
                yield counter

    def _of_loader(self, iterator: Any, began: float) -> Counter | None:
        try:
            total, started = len(iterator), iterator._num_yielded
        except Exception:  # an endless dataset, or one of the user's whose length fails
            return None
        if not 0 < total >= started:
            return None
        return Counter(("loader", id(iterator._dataset), total), began, total, started)

    def _of_bars(self) -> Iterator[Counter]:
        std = sys.modules.get("tqdm.std")
        if std is None:
            return
        bars: list[Any] = []
        with contextlib.suppress(RuntimeError):  # another thread opened one
            bars = list(std.tqdm._instances)
        for bar in bars:
            total = getattr(bar, "total", None)
            if total and 0 <= bar.n < total and getattr(bar, "start_t", None) is not None:
                yield Counter(("bar", bar.desc, total), bar.start_t, int(total) or 1, int(bar.n) + 1)


def fraction_done(counters: list[Counter]) -> float:
    """Return which part (0 to 1) of the work that *counters*, the outermost first, count is done."""
    inner = 0.0
    for counter in reversed(counters):
        inner = min(1.0, (max(counter.started - 1, 0) + inner) / counter.total)
    return inner


def source_hash(tree: ast.AST) -> str:
    """Return the hash of a cell's source, in hexadecimal digits: of what it does, not of how it is written.

    Runs of the same source take about as long as each other, so the executor learns from them.
    """
    text = ast.dump(tree, annotate_fields=False)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).hexdigest()


class SourceReader(ast.NodeTransformer):
    """Reads the source of each cell, and changes nothing; the first of IPython's `ast_transformers`.

    Parameters
    ----------
    on_source
        Called with the hash of each cell's source, before it runs.
    """

    def __init__(self, on_source: Callable[[str], None]) -> None:
        self._on_source = on_source

    def visit(self, node: ast.AST) -> ast.AST:
        """Read *node*, a whole cell."""
        self._on_source(source_hash(node))
        return node
