"""What one iteration asks of the device: floating-point operations, and bytes read and written.

Counted from the operations that pass the dispatch mode (:mod:`.device_mode`), by the formulas of
:mod:`torch.utils.flop_counter`. The mode is put in for that, for one whole iteration between two passes of the known
boundary and at most :data:`_MOST_OPERATIONS` operations, once for each source. What a compiled function does is not
seen.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

log = logging.getLogger(__name__)

#: passes of boundaries in one section after which nothing is counted any more: none of them was the known one
_GIVE_UP_AFTER = 64
#: operations of one iteration that are counted; of longer iterations no cost is known
_MOST_OPERATIONS = 20_000
#: sources whose cost is remembered
_MOST_SOURCES = 256


class IterationCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one iteration asks of the device."""

    flops: int
    #: read and written by operations, if each went to memory
    bytes: int


class IterationCostCounter:
    """Counts one iteration of each source."""

    def __init__(self) -> None:
        self._flops = self._bytes = self._operations = 0
        #: between two passes of the known boundary, with the mode in all the time
        self._is_counting = False
        self._passes = 0
        self._formulas: Mapping[Any, Callable[..., int]] | None = None
        self._source: str | None = None
        #: by source, the last counted last
        self._known: dict[str, IterationCost] = {}
        #: of the running section's iterations; None: not counted
        self.cost: IterationCost | None = None

    def section_began(self) -> None:
        """Prepare for other code than before."""
        self.cost = self._source = None
        self._is_counting = False
        self._passes = 0

    def source_read(self, source: str) -> None:
        """Record the running section's *source*; earlier counts of the same source stay valid."""
        self._source = source
        self.cost = self._known.get(source)

    @property
    def is_wanted(self) -> bool:
        """Whether the mode should be in for another iteration, to count it."""
        return self.cost is None and self._passes < _GIVE_UP_AFTER and not is_compiler_used()

    @property
    def is_counting(self) -> bool:
        """Whether an iteration is being counted, so that the mode has to stay in."""
        return self._is_counting

    def boundary_passed(self, *, is_known: bool) -> None:
        """Handle a boundary with the mode in; *is_known* if it is the one that delimits iterations."""
        self._passes += 1
        if not is_known or self.cost is not None:
            return
        if self._is_counting and self._bytes:
            self.cost = IterationCost(flops=self._flops, bytes=self._bytes)
            if self._source is not None:
                self._known[self._source] = self.cost
                if len(self._known) > _MOST_SOURCES:
                    del self._known[next(iter(self._known))]
        self._flops = self._bytes = self._operations = 0
        self._is_counting = self.cost is None and self._passes < _GIVE_UP_AFTER

    def mode_left(self) -> None:
        """Stop counting: operations are no longer intercepted."""
        self._is_counting = False

    def count(self, operation: Any, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> None:
        """Count an operation that has just run, if an iteration is counted.

        Parameters
        ----------
        operation
            What torch dispatched.
        args, keywords, result
            Its arguments, and what it returned.
        """
        if not self._is_counting:
            return
        self._operations += 1
        if self._operations > _MOST_OPERATIONS:
            self._give_up()
            return
        self._bytes += _bytes_of(args) + _bytes_of(result)
        formula = self._known_formulas().get(getattr(operation, "_overloadpacket", None))
        if formula is not None:
            try:
                self._flops += formula(*args, **keywords, out_val=result)
            except Exception:
                log.exception("cannot count %s; no utilisation is predicted", operation)
                self._give_up()

    def _give_up(self) -> None:
        self._is_counting, self._passes = False, _GIVE_UP_AFTER

    def _known_formulas(self) -> Mapping[Any, Callable[..., int]]:
        if self._formulas is None:
            from torch.utils.flop_counter import flop_registry

            aten = torch.ops.aten
            forward = flop_registry[aten._scaled_dot_product_flash_attention]
            backward = flop_registry[aten._scaled_dot_product_flash_attention_backward]
            self._formulas = {
                # the same arithmetic on the host, under names that the counter does not know
                aten._scaled_dot_product_flash_attention_for_cpu: forward,
                aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
                **flop_registry,
            }
        return self._formulas


def is_compiler_used() -> bool:
    """Whether `torch.compile` has compiled something: a mode or a hook might make it compile again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"])


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    return 0
