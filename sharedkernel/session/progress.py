"""How far a cell has come, as its own loops and progress bars show: nothing of it costs anything per iteration.

Looked at are, outermost first as they began:

- `for` loops over a `range` in the cell's own source (:mod:`.loops`), whose iterator knows how much is left;
- `torch.utils.data.DataLoader`, whose iterators count what they gave out;
- bars of `tqdm` (`tqdm.std`, and so `auto` and `notebook`) that have a total;
- :func:`sharedkernel.iterations` over something that has a length.

Each is a :class:`Counter`: what of the inner one is done is a part of one item of the outer one. Two that count the
same items, such as a bar around a loader, disagree by one item at most, so which are nested need not be known.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

from sharedkernel.session import loops

#: references to an iterator whose loop is over: the list's and the two that asking for it takes
_REFERENCES_WHEN_OVER = 3
#: loops that are looked at, the newest; others are of functions called over and over
_MOST_LOOPS = 64


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


class Progress:
    """Sees the loops and bars of one session."""

    def __init__(self) -> None:
        #: (loop's number, when it began, its items, its iterator)
        self._ranges: list[tuple[int, float, int, Any]] = []
        #: when each live iterator of a DataLoader was made
        self._loaders: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._said: list[Counter] = []
        self._since = 0.0

    def install(self) -> None:
        """Look at loops and loaders from now on, for the life of the process."""
        loops.keep_ranges(self._range_began)
        original = dataloader._BaseDataLoaderIter.__init__

        def began(iterator: Any, *args: Any, **keywords: Any) -> None:
            original(iterator, *args, **keywords)
            self._loaders[iterator] = time.time()

        dataloader._BaseDataLoaderIter.__init__ = began  # type: ignore[assignment,method-assign]

    def section_began(self) -> None:
        """Forget what began before: other code runs now."""
        self._since = time.time()
        self._ranges.clear()
        self._said.clear()

    def _range_began(self, number: int, values: range) -> Iterator[int]:
        iterator = iter(values)
        self._ranges.append((number, time.time(), len(values), iterator))
        if len(self._ranges) > _MOST_LOOPS:
            self._forget_ended()
            del self._ranges[:-_MOST_LOOPS]
        return iterator

    def _forget_ended(self) -> None:
        # A loop that is over, however it ended, has let go of its iterator; there is no cheaper way to know.
        self._ranges = [entry for entry in self._ranges if sys.getrefcount(entry[3]) >= _REFERENCES_WHEN_OVER]

    def say(self, place: Hashable, total: int) -> Counter:
        """Return a counter for a loop that counts by itself, until :meth:`unsay`."""
        counter = Counter(place, time.time(), total, 0)
        self._said.append(counter)
        return counter

    def unsay(self, counter: Counter) -> None:
        """Take note that a loop that counted by itself is over."""
        with contextlib.suppress(ValueError):  # its section is over
            self._said.remove(counter)

    def counters(self) -> list[Counter]:
        """Return what counts in the running section, the outermost first."""
        self._forget_ended()
        found = [
            Counter(("loop", number), began, total, total - operator.length_hint(iterator))
            for number, began, total, iterator in self._ranges
        ]
        loaders = [counter for counter in map(self._of_loader, list(self._loaders.items())) if counter is not None]
        found += loaders
        found += [counter for counter in self._of_bars() if counter.began >= self._since]
        found += self._said
        # What was made and is not iterated over is no loop: `tqdm.auto` makes an iterator that it may never use.
        return sorted((counter for counter in found if counter.started), key=lambda counter: counter.began)

    def _of_loader(self, entry: tuple[Any, float]) -> Counter | None:
        iterator, began = entry
        try:
            total, started = len(iterator), iterator._num_yielded
        except TypeError:  # an endless dataset
            return None
        if began < self._since or not 0 < total >= started:
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
