"""Find where an iteration ends, in code that knows nothing of iterations.

*Candidates* are the places that ordinary training and inference code passes once per iteration: `zero_grad` and `step`
of an optimizer, the next batch of a `DataLoader`, a pass of a loop at a cell's top level (:mod:`.loops`), the outermost
forward of a module, and :func:`sharedkernel.iterations` for those who want to say it. In the first iterations each
candidate's live memory is noted; the *boundary* is the candidate with the least, since a switch there leaves the
least behind. Other code seen instead of it for a while makes the search start again.

Candidates that cost something even where they are not needed are the last resort. Loops are watched only when a grant
has been held for a tenth of a second without any other candidate (or, once a boundary is known, for far longer than is
usual between two passes); forwards are watched later still. Where other candidates were passed as well, one of these
has to be passed more often before it is chosen: it may have come only because the machine stood still for a moment.
Code with no other boundary than these may have stopped using the device long ago (a loop of plain Python after one
operation), so once a second it gives the grant back and has to ask again by its next operation.

Where not even these are passed, as in a loop within a function, a signal between two bytecodes takes the grant; it also
counts what the running loops have done since the last one, so that it is known how much is left.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from sharedkernel.ipc.shared_page import FORCE_SIGNAL, Turn
from sharedkernel.session.gate.gate import Gate
from sharedkernel.session.gate.torch_internals import is_compiler_used, uncompiled
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.progress import loops
from sharedkernel.session.progress.progress import Progress

T = TypeVar("T")

#: members of an enumeration cost more to look up than names of the module
_HOLDING = Turn.HOLDING
#: passes of one candidate after which the boundary is chosen; the first is not looked at (an optimizer's state is born)
LEARN_AFTER = 4
#: the same for a candidate of the last resort where others were passed, too: they come more seldom, and are better
LEARN_LAST_AFTER = 16
#: other candidates passed in a row, or grants without any, after which the boundary is searched anew
FORGET_AFTER = 64
#: candidates whose live memory differs by less than this many bytes count as equal, and the earlier kind wins
EQUAL_BYTES = 256 * 1024
#: ticks of the meter's clock after which a grant with a last-resort boundary, or without any, is given back
RELEASE_AFTER = 10
#: how many times the longest stretch between two passes of the known boundary may pass before others are looked at
PATIENCE = 4
#: grants in a row without any candidate after which the last resort is no boundary any more
QUIET_TURNS = 2
#: forwards in a row within so many seconds of each other after which they are looked at again only at the next tick
MOST_FAST_FORWARDS, FAST_FORWARD = 32, 0.001
KINDS = ("iterations", "zero_grad", "dataloader", "forward", "loop", "step")
LAST_RESORT = ("forward", "loop")


@dataclass(slots=True)
class Candidate:
    """A place that may be the boundary."""

    passes: int = 0
    #: sum of the live bytes at all passes but the first
    live_bytes: int = 0

    @property
    def mean_live(self) -> float:
        """Mean live bytes."""
        return self.live_bytes / max(1, self.passes - 1)


class Boundaries:
    """Learns one session's iteration boundary and notifies its gate each time it is passed."""

    def __init__(self, gate: Gate, meter: Meter, progress: Progress) -> None:
        self._gate = gate
        self._standing = gate.standing
        self._progress = progress
        self._meter = meter
        self._main = threading.get_ident()
        self._candidates: dict[tuple[str, int], Candidate] = {}
        self._kind = ""
        self._place = 0
        self._others_passed = 0
        self._passed_since_clock = False
        self._ticks = 0
        #: ticks since a candidate was passed, and the most there were between two passes of the known boundary
        self._quiet_ticks = 0
        self._longest_quiet = 0
        #: grants in a row in which none was passed
        self._quiet_turns = 0
        #: on all modules
        self._forward_hooks: list[RemovableHandle] = []

    def install(self) -> None:
        """Put the hooks that cost next to nothing in place, for the life of the process."""
        _notify(torch.optim.Optimizer, "zero_grad", lambda optimizer: self.passed("zero_grad", id(optimizer)))
        loaders = dataloader._BaseDataLoaderIter
        _notify(loaders, "__next__", lambda it: self.passed("dataloader", id(it._dataset)), first=True)
        register_optimizer_step_post_hook(self._stepped)
        loops.watch(None)  # cells refer to the hook from now on

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not torch.compiler.is_compiling():
            self.passed("step", id(optimizer))

    def passed(self, kind: str, place: int) -> None:
        """Handle a pass of the candidate *kind* at *place*."""
        if self._standing.turn is not _HOLDING or threading.get_ident() != self._main:
            return
        self._quiet_turns = 0
        if place == self._place and kind == self._kind:
            self._others_passed = 0
            self._passed_since_clock = True
            self._gate.boundary()
        elif not self._kind:
            self._learn(kind, place)
        else:
            self._others_passed += 1
            if self._others_passed > FORGET_AFTER:
                self._forget()

    def _learn(self, kind: str, place: int) -> None:
        if kind != "loop":
            self._passed_since_clock = True
        most = max((seen.passes for seen in self._candidates.values()), default=0)
        candidate = self._candidates.setdefault((kind, place), Candidate())
        candidate.passes += 1
        if candidate.passes > 1:
            candidate.live_bytes += self._meter.used_bytes
        if kind == "iterations" or candidate.passes >= self._passes_wanted(kind):
            self._choose()
        # All candidates of one iteration count as one.
        self._gate.boundary(int(candidate.passes > most), is_known=False)

    def _passes_wanted(self, kind: str) -> int:
        has_better = any(other not in LAST_RESORT for other, _ in self._candidates)
        return LEARN_LAST_AFTER if kind in LAST_RESORT and has_better else LEARN_AFTER

    def _choose(self) -> None:
        enough = {key: seen for key, seen in self._candidates.items() if seen.passes >= LEARN_AFTER - 1}
        said = [key for key in self._candidates if key[0] == "iterations"]
        least = min((seen.mean_live for seen in enough.values()), default=0.0)
        equal = said or [key for key, seen in enough.items() if seen.mean_live <= least + EQUAL_BYTES]
        self._kind, self._place = min(equal, key=lambda key: KINDS.index(key[0]))
        self._candidates.clear()
        self._others_passed = 0
        if self._kind != "loop":
            loops.watch(None)
        if self._kind != "forward":
            self._stop_watching_forwards()

    def _forget(self) -> None:
        self._kind, self._place = "", 0
        self._candidates.clear()
        self._others_passed = self._longest_quiet = 0

    # --- the last resort ----------------------------------------------------------------------------------------------

    def turn_changed(self, begins: bool) -> None:
        """Start to look for boundaries if a grant *begins*, or stop with its end."""
        self._ticks = self._quiet_ticks = 0
        self._quiet_turns += begins
        loops.watch(self._loop_passed if begins and self._kind == "loop" else None)

    def clock_ticked(self) -> None:
        """Look at more candidates if no boundary comes (on the meter's thread, while a grant is held)."""
        self._ticks += 1
        self._standing.measure_due = True
        if self._passed_since_clock:
            self._passed_since_clock = False
            self._longest_quiet = max(self._longest_quiet, self._quiet_ticks)
            self._quiet_ticks = 0
            if self._kind not in ("", "loop"):
                loops.watch(None)
        else:
            self._quiet_ticks += 1
            self._look_further()
        if self._kind == "forward" and not self._forward_hooks and not self._is_looked_at():
            self._watch_forwards()
        none_lately = self._is_silent() and self._quiet_ticks >= RELEASE_AFTER
        last_resort = self._kind in LAST_RESORT and self._ticks >= RELEASE_AFTER
        self._standing.release_due = none_lately or last_resort
        if self._is_silent() and self._standing.is_held:
            signal.pthread_kill(self._main, FORCE_SIGNAL)
        elif not self._kind:
            self._gate.interrupt_soon()

    def _look_further(self) -> None:
        patience = self._patience
        if self._quiet_ticks >= patience and loops.watched() is None:
            loops.watch(self._loop_passed)
        elif self._quiet_ticks >= 2 * patience and not self._forward_hooks and not self._is_looked_at():
            self._watch_forwards()

    @property
    def _patience(self) -> int:
        """Ticks without any boundary after which others are looked at."""
        return PATIENCE * (self._longest_quiet + 1) if self._kind else 1

    def _is_silent(self) -> bool:
        """Whether the code passes no candidate at all."""
        turns = FORGET_AFTER if self._kind and self._kind not in LAST_RESORT else QUIET_TURNS
        return self._quiet_ticks > 2 * self._patience or self._quiet_turns > turns

    def force_signalled(self) -> None:
        """Count what loops have done as iterations, where nothing else does (main thread, between two bytecodes)."""
        if not self._is_silent():
            return
        if self._kind:
            self._forget()
        if items := self._progress.items_passed():
            self._standing.count(items)

    def _is_looked_at(self) -> bool:
        """Whether something would see hooks on all modules, such as `torch.compile`, which would compile again."""
        return is_compiler_used() or self._gate.is_looked_at

    def _loop_passed(self, place: int) -> None:
        self.passed("loop", place)

    def _watch_forwards(self) -> None:
        warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global hooks")
        depth = num_fast = 0
        last = 0.0

        def before(module: torch.nn.Module, _inputs: object) -> None:
            nonlocal depth, num_fast, last
            if not depth and not torch.compiler.is_compiling() and self._may_be_outermost(module):
                self.passed("forward", id(module))
                now = time.monotonic()
                num_fast, last = num_fast + 1 if now < last + FAST_FORWARD else 0, now
                if self._kind == "forward" and num_fast > MOST_FAST_FORWARDS:
                    self._stop_watching_forwards()
            depth += 1

        def after(*_: object) -> None:
            nonlocal depth
            depth = max(0, depth - 1)

        self._forward_hooks = [
            register_module_forward_pre_hook(before),
            torch.nn.modules.module.register_module_forward_hook(after, always_call=True),
        ]

    def _may_be_outermost(self, module: torch.nn.Module) -> bool:
        """Whether a forward that is seen first may be the outermost: hooks may be put in while another one runs."""
        return self._kind != "forward" or id(module) == self._place or self._quiet_ticks > PATIENCE

    def look_began(self) -> None:
        """Remove the hooks on all modules, which a profiler or compiler would see."""
        self._stop_watching_forwards()

    def _stop_watching_forwards(self) -> None:
        hooks, self._forward_hooks = self._forward_hooks, []
        for hook in hooks:
            hook.remove()

    # --- said by the user ---------------------------------------------------------------------------------------------

    def iterations(self, iterable: Iterable[T], place: tuple[str, int]) -> Iterator[T]:
        """Yield from *iterable*; each item begins an iteration.

        Parameters
        ----------
        iterable
            What to yield from; where it has a length, it is known how many iterations are left.
        place
            File and line where this is said: what is learned of a loop holds for its next run.
        """
        number = hash(place)
        with self._progress.said(place, len(iterable) if isinstance(iterable, Sized) else None) as counter:
            for item in iterable:
                counter.started += 1
                self.passed("iterations", number)
                yield item


def _notify(owner: type, name: str, note: Callable[[Any], None], *, first: bool = False) -> None:
    """Have *note* called with the object of each call of a method, before it if *first*, else after it."""
    original = getattr(owner, name)
    # Where torch has wrapped the method to keep Dynamo out, it is called without that wrapper and its frame: our own
    # wrapper keeps Dynamo out of the method and of *note*.
    function = original if first else getattr(original, "__wrapped__", original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if first:
            note(self)
        result = function(self, *args, **kwargs)
        if not first:
            note(self)
        return result

    # as torch's own that it replaces: not compiled, and no part of a graph
    method._torchdynamo_disable = True  # type: ignore[attr-defined]
    setattr(owner, name, uncompiled(method))
