"""Notebooks that together keep three times what the device has: whether all finish, and sooner than by turns.

The peer is what people do who share a device by appointment: one notebook after the other has all of it, from its first
cell to its last, while its user thinks between the cells. Shared, sessions that are idle are offloaded while another
one needs the room, and restored before their next cell. Where cells do not end, `memory_turns.py` measures the waits.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import memory_turns
from benchmarks.stack.client import open_notebook
from benchmarks.stack.results import BenchmarkFailed, Conditions, Result, Target, brief
from benchmarks.stack.servers import gateway_route
from benchmarks.stack.trainings import CHECK_TABLE, PREPARE_TABLE, TABLE_PART_BYTES, read_status
from sharedkernel.local_stack import LocalStack
from sharedkernel.status.document import SessionStatus
from sharedkernel.units import format_bytes

_USERS = ("ada", "grace", "hedy", "joan", "lise", "mary")
#: kept by each notebook between its cells, bytes, and what the device has over the sum of it
_KEPT_BYTES = 512 << 20
_CAPACITY_OVER_SUM = 1 / 3
_NUM_CELLS = 5
_NUM_TENSORS = _KEPT_BYTES // TABLE_PART_BYTES
#: a user's time between two cells, seconds
_THINKING = 2.0

_CELL = f"train()\n{CHECK_TABLE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OversubscriptionRun:
    """All notebooks, run once."""

    seconds: float
    #: notebooks all of whose cells ended well, with everything still there
    num_finished: int
    #: what went wrong in the others
    errors: Sequence[str]
    #: of each session, as the status document had it at the end
    sessions: Sequence[SessionStatus]

    def total(self, name: str) -> float:
        """Return the sum of one figure over the sessions."""
        return sum(getattr(session, name) for session in self.sessions)


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `oversubscription`."""
    cells = _NUM_CELLS // 2 if conditions.effort.quick else _NUM_CELLS
    count = conditions.effort.runs(3) if conditions.effort.repeats else 1
    capacity = int(len(_USERS) * _KEPT_BYTES * _CAPACITY_OVER_SUM)
    shared, by_turns = [], []
    for number in range(count):
        conditions.say(f"six notebooks at once, {number + 1} of {count}")
        shared.append(_run(conditions, capacity, cells, at_once=True))
        conditions.say(f"six notebooks by turns, {number + 1} of {count}")
        by_turns.append(_run(conditions, capacity, cells, at_once=False))
    last = shared[-1]
    waits = [session.wait_p95_seconds for session in last.sessions if session.wait_p95_seconds is not None]
    what = (
        f"six notebooks that keep {format_bytes(_KEPT_BYTES)} each on a device of {format_bytes(capacity)}, {cells} "
        f"cells with {_THINKING:g} s of thinking between them"
    )
    return [
        Result(
            metric="finished",
            value=min(run.num_finished for run in shared) / len(_USERS),
            unit="ratio",
            target=Target(">=", 1),
            how=f"Notebooks that finished without an error and with all their data, of {what}: "
            f"{last.total('offloads'):.0f} offloads ({brief(last.total('offload_seconds'))} in all), "
            f"{last.total('restores'):.0f} restores ({brief(last.total('restore_seconds'))}); waits, p95 by session, "
            f"median {brief(statistics.median(waits))}, longest {brief(max(waits))}."
            + "".join(f" {error}." for error in last.errors[:1]),
        ),
        Result(
            metric="time_over_turns",
            value=statistics.median(a.seconds / b.seconds for a, b in zip(shared, by_turns, strict=True)),
            unit="ratio",
            target=Target("<=", 1),
            how=f"Time until all have ended, of {what}: at once "
            f"({brief(statistics.median(r.seconds for r in shared))}) over one after the other "
            f"({brief(statistics.median(r.seconds for r in by_turns))}).",
        ),
        *memory_turns.measure(conditions),
    ]


def _run(conditions: Conditions, capacity: int, cells: int, *, at_once: bool) -> OversubscriptionRun:
    options = {**conditions.stack_options, "capacity": str(capacity)}
    quotas = {"default": {"offload_after": 0}}
    with LocalStack(users=list(_USERS), quotas=quotas, **options) as stack:
        return asyncio.run(_run_notebooks(stack, cells, at_once=at_once))


async def _run_notebooks(stack: LocalStack, cells: int, *, at_once: bool) -> OversubscriptionRun:
    begun = time.monotonic()
    if at_once:
        ends = await asyncio.gather(*(_run_notebook(stack, user, cells) for user in _USERS))
    else:
        ends = [await _run_notebook(stack, user, cells) for user in _USERS]
    errors = [end for end in ends if isinstance(end, str)]
    return OversubscriptionRun(
        seconds=time.monotonic() - begun,
        num_finished=len(ends) - len(errors),
        errors=errors,
        sessions=[end for end in ends if not isinstance(end, str)],
    )


async def _run_notebook(stack: LocalStack, user: str, cells: int) -> SessionStatus | str:
    """Run one notebook; return its session's entry of the status document, or what went wrong."""
    async with open_notebook(gateway_route(stack, user)) as notebook:
        try:
            await notebook.run(PREPARE_TABLE.format(seed=_USERS.index(user), num_tensors=_NUM_TENSORS))
            for _ in range(cells):
                await asyncio.sleep(_THINKING)
                if not await notebook.value(_CELL):
                    return f"the data of {user} changed"
        except BenchmarkFailed as error:
            return f"{user}: {error}"
        status = await read_status(stack)
        return next(entry for entry in status.sessions if entry.id == notebook.kernel_id)
