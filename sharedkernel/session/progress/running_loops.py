"""The `for` loops that user code is in the middle of, as they lie inside each other, and what each has left.

Looked at is the calling thread, from the outermost frame of the user's own (a cell, or a script that it runs) inwards,
with the generators that its loops draw from. Loops of torch, IPython and this package itself are no progress.

What a loop has left its iterator knows: those of ranges and containers do, `enumerate`, `zip`, `map` and `reversed`
have one of these, `tqdm` and other generators a loop of their own. What is asked is the interpreter's own and runs
none of the user's code.
"""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, GeneratorType
from typing import Any

from torch.utils.data import dataloader

from sharedkernel.session.progress.value_stack import active_iterators

#: packages whose loops are not the user's
_NOT_THEIRS = frozenset({"IPython", "asyncio", "ipykernel", "sharedkernel", "torch"})
#: frames and loops that are looked at, and generators that draw from each other
_MOST_FRAMES, _MOST_LOOPS, _MOST_INSIDE = 1000, 64, 8

_RANGES = (type(iter(range(1))), type(iter(range(1 << 70))))
_CONTAINERS = frozenset({list, tuple, str, bytes, dict, set, frozenset})
_COUNTABLE = (
    *_RANGES, *(type(iter(kind())) for kind in _CONTAINERS), type(iter({}.items())), type(iter({}.values())),
    type(iter("é")), type(reversed([])), type(reversed({})), reversed,
)  # fmt: skip
_WRAPPERS = (enumerate, zip, map)
_LOADERS = (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)
_TYPES = frozenset(map(id, (*_COUNTABLE, *_WRAPPERS, *_LOADERS, GeneratorType)))


@dataclass(slots=True, frozen=True)
class RunningLoop:
    """One loop; not to be kept, as it refers to the user's objects."""

    #: the same for each run of the same loop
    place: tuple[str, str, int, int]
    #: what it draws from: an iterator that :func:`left` takes, or of a `DataLoader`
    iterator: Any

    @property
    def is_loader(self) -> bool:
        """Whether a `DataLoader` is what it draws from."""
        return isinstance(self.iterator, _LOADERS)


def running_loops() -> list[RunningLoop]:
    """Return the loops of the calling thread that show what they have left, the outermost first."""
    if _is_closing():
        return []
    found: list[RunningLoop] = []
    for frame in _user_frames():
        found += _loops_of(frame, _MOST_INSIDE)
    return found[:_MOST_LOOPS]


def left(iterator: Any) -> int:
    """Return how many items *iterator* will still give."""
    return operator.length_hint(iterator)


def size(iterator: Any) -> int:
    """Return how many items *iterator*, which has given one, gives in all; or how many are known of."""
    known = left(iterator) + 1
    if isinstance(iterator, _RANGES):
        values, given = _range_of(iterator)
        if given is not None:
            return max(known, len(values))
        # From Python 3.12 on its first item is forgotten, which nearly always is 0.
        return known - 1 + values.start // values.step if values.start > 0 < values.step else known
    return max(known, len(gc.get_referents(iterator)[0])) if _is_plain(iterator) else known


def _is_plain(iterator: Any) -> bool:
    """Whether a container of the interpreter's own is what *iterator* draws from."""
    return any(type(source) in _CONTAINERS for source in gc.get_referents(iterator)[:1])


def _range_of(iterator: Any) -> tuple[range, int | None]:
    _, (values,), given = iterator.__reduce__()
    return values, given


def _is_closing() -> bool:
    """Whether a generator or object is being finalized: perhaps while an exception takes the frames around it away."""
    error = sys.exception()
    for _ in range(_MOST_INSIDE):
        if error is None:
            return False
        if isinstance(error, GeneratorExit):
            return True
        error = error.__context__
    return False


def _user_frames() -> list[FrameType]:
    """Return the frames of the user's code and of what it calls, the outermost first."""
    theirs = getattr(sys.modules.get("__main__"), "__dict__", None)
    frames: list[FrameType] = []
    num_theirs = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < _MOST_FRAMES:
        if frame.f_code.co_name == "__del__":
            return []
        frames.append(frame)
        if frame.f_globals is theirs:
            num_theirs = len(frames)
        frame = frame.f_back
    return [frame for frame in reversed(frames[:num_theirs]) if not _is_ours(frame)]


def _is_ours(frame: FrameType) -> bool:
    return str(dict.get(frame.f_globals, "__name__", "")).partition(".")[0] in _NOT_THEIRS


def _loops_of(frame: FrameType, depth: int) -> Iterator[RunningLoop]:
    code = frame.f_code
    for instruction, iterator in active_iterators(frame, _TYPES):
        yield from _unwrapped((code.co_filename, code.co_qualname, code.co_firstlineno, instruction), iterator, depth)


def _unwrapped(place: tuple[str, str, int, int], iterator: Any, depth: int) -> list[RunningLoop]:
    """Return the loop at *place* over *iterator*, or those inside what it draws from; none if nothing shows."""
    if isinstance(iterator, GeneratorType):
        return _inside(iterator, depth - 1) if depth else []
    if isinstance(iterator, reversed) and not _is_plain(iterator):
        return []  # it would ask a sequence of the user's for its length
    if not isinstance(iterator, _WRAPPERS):
        return [RunningLoop(place, iterator)]
    if not depth:
        return []
    parts = iterator.__reduce__()[1]
    if not isinstance(iterator, zip):
        parts = parts[:1] if isinstance(iterator, enumerate) else parts[1:]
    inside = [_unwrapped(place, part, depth - 1) for part in parts if id(type(part)) in _TYPES]
    # The shortest ends the loop; of those that cannot be compared, the first.
    plain = [loops for loops in inside if len(loops) == 1 and not loops[0].is_loader]
    return min(plain, key=lambda loops: left(loops[0].iterator), default=next(filter(None, inside), []))


def _inside(generator: GeneratorType[Any, Any, Any], depth: int) -> list[RunningLoop]:
    """Return the loops that *generator* is in the middle of, or what it gives on from."""
    frame, source = generator.gi_frame, generator.gi_yieldfrom
    if frame is None or generator.gi_running or _is_ours(frame):
        return []
    loops = list(_loops_of(frame, depth))
    if id(type(source)) in _TYPES:
        loops += _unwrapped((frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno, 0), source, depth)
    return loops
