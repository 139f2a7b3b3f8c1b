"""The `for` loops that user code is in the middle of, as they lie inside each other, and what each has left.

Looked at is the calling thread, from the outermost frame of the user's own (a cell, or a script that it runs) inwards,
with the generators that its loops draw from. Loops of torch, IPython and this package itself are no progress.

What a loop has left its iterator knows: those of ranges and containers do, `enumerate`, `zip`, `map` and `reversed`
have one of these, `tqdm` and other generators a loop of their own. What is asked is the interpreter's own and runs
none of the user's code.

A loop's iterator lies on its frame's value stack, which Python does not show: `gc.get_referents` tells nothing of a
frame that runs. But where it lies follows from the bytecode: at a given instruction the stack always has the same
depth, and the loops around that instruction the same slots. :func:`loop_slots` finds those once for each code object,
and :func:`active_iterators` reads them through `ctypes`. The user's objects are left alone, and nothing is kept.

To be called in the thread that runs the frame, also in a signal's handler: its frames stand still meanwhile. Only slots
are read that hold a reference at that instruction, and before an object is touched, its first words must look like a
live object of a known type: while an exception ends a frame, finalizers run with its stack half emptied.

An interpreter that is laid out otherwise has no iterators: :func:`is_supported` tries it on a loop of its own.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import gc
import logging
import operator
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, GeneratorType
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

log = logging.getLogger(__name__)

#: where an interpreter's frame has its code, and its slots, in bytes, by version
_LAYOUTS = {(3, 11): (32, 72), (3, 12): (0, 72), (3, 13): (0, 72)}
_WORD = 8
#: where a frame object has the address of its interpreter's frame
_FRAME_AT = 3 * _WORD
#: a freed object's count of references is overwritten by an address or by 0
_MOST_REFERENCES = 1 << 20
#: bytes of code beyond which it is not looked at, as that takes about 3 µs each
_MOST_CODE = 1 << 15
#: instructions after which the next one is not reached
_LAST = frozenset({
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT",
})  # fmt: skip
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)

#: (the loop's instruction, the slot of its iterator above the frame's variables), the outermost loop first
Slots = tuple[tuple[int, int], ...]

_known_slots: WeakKeyDictionary[CodeType, dict[int, Slots]] = WeakKeyDictionary()


def active_iterators(frame: FrameType, types: Collection[int]) -> Iterator[tuple[int, Any]]:
    """Yield (instruction, iterator) for each `for` loop that *frame* is in the middle of, the outermost first.

    Parameters
    ----------
    frame
        Of the calling thread, or of a generator that is suspended.
    types
        Ids of the types whose iterators are wanted; others are left out.
    """
    slots = loop_slots(frame.f_code).get(frame.f_lasti)
    if slots and is_supported():
        yield from _read(frame, slots, types)


def _read(frame: FrameType, slots: Slots, types: Collection[int]) -> Iterator[tuple[int, Any]]:
    code_at, slots_at = _LAYOUTS[sys.version_info[:2]]
    code = frame.f_code
    inner = _word(id(frame) + _FRAME_AT)
    if not inner or _word(inner + code_at) != id(code):
        return
    num_variables = len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)
    for instruction, slot in slots:
        address = _word(inner + slots_at + _WORD * (num_variables + slot))
        if address and 0 < _word(address) < _MOST_REFERENCES and _word(address + _WORD) in types:
            yield instruction, ctypes.cast(address, ctypes.py_object).value


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


@functools.cache
def is_supported() -> bool:
    """Return whether the value stack is where it is looked for."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in _LAYOUTS or sys.maxsize < 1 << 32:
        return False
    if object().__sizeof__() != 2 * _WORD or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    iterator = iter(range(2))
    for _ in iterator:
        frame = sys._getframe()
        slots = loop_slots(frame.f_code).get(frame.f_lasti, ())
        found = [value for _, value in _read(frame, slots, {id(type(iterator))})]
        return len(found) == 1 and found[0] is iterator
    return False


def loop_slots(code: CodeType) -> dict[int, Slots]:
    """Return the loops around each instruction (by its place in bytes) of *code* that is in any."""
    found = _known_slots.get(code)
    if found is None:
        try:
            found = _find_slots(code) if len(code.co_code) <= _MOST_CODE else {}
        except (KeyError, ValueError):  # written by somebody, and by no compiler
            log.info("loops of %s are not seen", code.co_qualname)
            found = {}
        _known_slots[code] = found
    return found


def _find_slots(code: CodeType) -> dict[int, Slots]:
    bytecode = dis.Bytecode(code)
    instructions, handlers = list(bytecode), bytecode.exception_entries  # type: ignore[attr-defined]
    if not any(instruction.opname == "FOR_ITER" for instruction in instructions):
        return {}
    ends = [*(instruction.offset for instruction in instructions[1:]), len(code.co_code)]
    ahead = {instruction.offset: (instruction, end) for instruction, end in zip(instructions, ends, strict=True)}
    found: dict[int, Slots] = {}
    seen: set[int] = set()
    # instructions to be looked at, with the depth of the stack before them and the loops whose iterators lie on it
    to_do: list[tuple[int, int, Slots]] = [(0, 0, ())]
    while to_do:
        offset, depth, loops = to_do.pop()
        if offset in seen:
            continue
        seen.add(offset)
        instruction, end = ahead[offset]
        for entry in handlers:
            if entry.start <= offset < entry.end:
                to_do.append((entry.target, entry.depth + entry.lasti + 1, _up_to(entry.depth, loops)))
        if instruction.opname == "FOR_ITER":
            loops = (*loops, (offset, depth - 1))
        elif instruction.opname == "SWAP":
            loops = _up_to(depth - (instruction.arg or 0), loops)
        following = [(target, after, _up_to(after, loops)) for target, after in _following(instruction, end, depth)]
        to_do += following
        # A slot counts that is there after the instruction, too: what takes an iterator away may run its finalizer.
        if following and following[0][2]:
            found.update((place, following[0][2]) for place in range(offset, end, 2))
    return found


def _up_to(depth: int, loops: Slots) -> Slots:
    return tuple(loop for loop in loops if loop[1] < depth)


def _following(instruction: dis.Instruction, end: int, depth: int) -> Iterator[tuple[int, int]]:
    """Yield what may run after *instruction*, and how deep the stack is then; what comes next in the code first."""
    code, arg = instruction.opcode, instruction.arg
    if instruction.opname == "RETURN_GENERATOR":
        yield end, 1  # what is sent into it at first
        return
    if instruction.opname not in _LAST:
        yield end, depth + dis.stack_effect(code, arg, jump=False)
    if code in _JUMPS:
        yield instruction.argval, depth + dis.stack_effect(code, arg, jump=True)


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
