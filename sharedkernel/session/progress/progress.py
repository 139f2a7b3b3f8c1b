"""The progress of a cell, as its own loops and progress bars show, and the forecast that is sent of it.

Nothing of it costs anything per iteration.

Looked at are, outermost first:

- the `for` loops that run (:mod:`.running_loops`): over ranges, containers, generators over these, and over a
  `torch.utils.data.DataLoader`, whose iterators count what they gave out;
- other iterators of a `DataLoader`;
- bars of `tqdm` (`tqdm.std`, and so `auto` and `notebook`) that have a total;
- :func:`sharedkernel.iterations` over something that has a length.

Each is a :class:`Counter`: what of the inner one is done is a part of one item of the outer one. Two that count the
same items, such as a bar around a loader, disagree by one item at most, so which are nested need not be known.

The *forecast* is of iterations left, and of their length. Iterations are counted by the known boundary. Between two
looks so many iterations passed and such a part of the work was done; so the whole is known, and what is left of it. A
loop that ran before in the same cell runs inside something that does not count: it is expected to run as often again.
The executor counts down by itself. So something is said when it becomes known, and when it turns out otherwise.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import sys
import time
from collections import Counter as Tally
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

from sharedkernel import protocol
from sharedkernel.session.progress.running_loops import RunningLoop, left, running_loops, size

#: by how much iterations left, and their length, may differ from what was said before it is said anew, as a share
_COUNT_TOLERANCE, _LENGTH_TOLERANCE = 0.1, 0.25
#: weight of the newest value in the mean length of iterations
_NEWEST = 0.3


@dataclass(slots=True)
class _Look:
    """An observation at a boundary."""

    iterations: int
    #: the outermost loop, and when it began
    place: Hashable
    began: float
    fraction: float


class Forecast:
    """Foresees one session's work.

    Parameters
    ----------
    progress
        What shows how far its cell is.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        #: the hash of what runs; None: not known
        self.source: str | None = None
        #: monotonic seconds and iterations at the last look, or when the present grant began if that was later
        self._held_since = (0.0, 0)
        #: the last look at a boundary, and the first one in the loop that is outermost now
        self._last: _Look | None = None
        self._first: _Look | None = None
        #: how often each outermost loop ran to its end in this section
        self._runs: Tally[Hashable] = Tally()
        self._remaining: int | None = None
        self._seconds: float | None = None
        #: what the executor was told, and at which iteration
        self._told = protocol.Foreseen()
        self._told_at = 0

    def section_began(self) -> None:
        """Prepare for other code than before."""
        self.progress.section_began()
        self.source = self._last = self._first = self._remaining = self._seconds = None
        self._runs.clear()
        self._told, self._told_at = protocol.Foreseen(), 0

    def source_read(self, source: str) -> None:
        """Record the *source* that runs; sources that it runs itself (as `%%time` does) belong to it."""
        if self.source is None:
            self.source = source

    def grant_began(self, iterations: int) -> None:
        """Count the time from now on as held, with *iterations* completed so far."""
        self._held_since = (time.monotonic(), iterations)

    def executor_changed(self) -> None:
        """Forget what the previous executor was sent."""
        self._told = protocol.Foreseen()

    @property
    def is_at_end(self) -> bool:
        """Whether no iteration is left after this one, as far as is known."""
        return self._remaining is not None and self._remaining <= 1

    def look(self, iterations: int) -> None:
        """Look at a pass of the known boundary, when the session has completed *iterations* in all."""
        counters = self.progress.counters()
        outermost = counters[0] if counters else None
        now = _Look(
            iterations=iterations,
            place=outermost and outermost.place,
            began=outermost.began if outermost else 0.0,
            fraction=fraction_done(counters),
        )
        last, self._last = self._last, now
        if last is None or self._first is None or (now.place, now.began) != (last.place, last.began):
            if last is not None:
                self._runs[last.place] += 1
            self._first, self._remaining = now, None
        passed = iterations - self._first.iterations
        if now.place is not None and now.fraction > self._first.fraction and passed:
            each_run = passed / (now.fraction - self._first.fraction)
            self._remaining = round(each_run * (1 - now.fraction + self._runs[now.place]))
        self._measure(iterations)

    def _measure(self, iterations: int) -> None:
        at, (since, before) = time.monotonic(), self._held_since
        if iterations > before:
            seconds = (at - since) / (iterations - before)
            self._seconds = seconds if self._seconds is None else self._seconds + _NEWEST * (seconds - self._seconds)
            self._held_since = (at, iterations)

    def news(self, iterations: int) -> protocol.Foreseen | None:
        """Return what the executor should be told by now, if anything, after so many *iterations* of the session."""
        told, remaining = self._told, self._remaining
        if remaining is not None and self._last is not None:  # beside others most boundaries pass without a look
            remaining = max(0, remaining - (iterations - self._last.iterations))
        foreseen = protocol.Foreseen(
            source=self.source,
            remaining_iterations=remaining if self._seconds is not None else None,
            iteration_seconds=self._seconds,
        )
        expected = None
        if told.remaining_iterations is not None:
            expected = max(0, told.remaining_iterations - (iterations - self._told_at))
        if (
            foreseen.source == told.source
            and not _differs(foreseen.remaining_iterations, expected, _COUNT_TOLERANCE, least=1.0)
            and not _differs(foreseen.iteration_seconds, told.iteration_seconds, _LENGTH_TOLERANCE)
        ):
            return None
        self._told, self._told_at = foreseen, iterations
        return foreseen


def _differs(value: float | None, told: float | None, tolerance: float, *, least: float = 0.0) -> bool:
    """Return whether *value* is known and is by more than *tolerance*, and *least*, another than was *told*."""
    if value is None or told is None:
        return value is not None
    return abs(value - told) > max(least, tolerance * told)


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

    @contextlib.contextmanager
    def said(self, place: Hashable, total: int | None) -> Iterator[Counter]:
        """Yield a counter for a loop that counts by itself, which counts while the body runs.

        Parameters
        ----------
        place
            What identifies the loop.
        total
            Its number of iterations; None: not known, and nobody is shown it.
        """
        counter = Counter(place, time.time(), total or 0, 0)
        if total is not None:
            self._said.append(counter)
        try:
            yield counter
        finally:
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
