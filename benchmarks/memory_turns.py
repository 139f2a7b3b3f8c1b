"""Four endless trainings and one interactive user whose memory is four times the device's: how long each waits.

One of them at a time fits. Each is promised the device's memory after one turn of each of the others: a memory quantum
(20 s, or twelve times the transfer) and the transfer. The figures are the longest wait over that bound, and the part of
the time that was spent on copying.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from benchmarks.stack.client import Notebook, open_notebook
from benchmarks.stack.results import BenchmarkFailed, Conditions, Result, Target, brief
from benchmarks.stack.servers import gateway_route
from benchmarks.stack.trainings import CHECK_TABLE, PREPARE_TABLE, TABLE_PART_BYTES, read_status
from sharedkernel.local_stack import LocalStack
from sharedkernel.scheduling.memory.memory_turns import QUANTUM_OVER_TRANSFER
from sharedkernel.status.document import StatusDocument
from sharedkernel.units import format_bytes

_TRAINERS = ("ada", "grace", "hedy", "joan")
_VISITOR = "lise"
_USERS = (*_TRAINERS, _VISITOR)
#: kept by each notebook, bytes, and all of it over what the device has: what is left beside one of them, 320 MiB, holds
#: the some 45 MiB that stay of each
_KEPT_BYTES = 1280 << 20
_SUM_OVER_CAPACITY = 4.0
#: least memory quantum, seconds: the usual one, and that of a quick run
_QUANTUM, _QUICK_QUANTUM = 20.0, 5.0
#: turns of each notebook that are watched, and for how many seconds at most
_ROUNDS, _LONGEST = 3, 1200.0
_QUICK_ROUNDS, _QUICK_LONGEST = 1, 420.0
#: the visitor's time between two cells, and between two looks at who waits, seconds
_THINKING, _LOOK = 10.0, 0.25

_TRAIN = """
while True:
    train()
"""


def measure(conditions: Conditions) -> list[Result]:
    """Return the figures `longest_wait_ratio` and `copy_share`."""
    quantum = _QUICK_QUANTUM if conditions.effort.quick else _QUANTUM
    capacity = int(len(_USERS) * _KEPT_BYTES / _SUM_OVER_CAPACITY)
    options = {
        **conditions.stack_options,
        "capacity": str(capacity),
        "executor_arguments": ["--memory-quantum", str(quantum)],
    }
    with LocalStack(
        users=list(_USERS), quotas={"default": {"memory": capacity, "offload_after": 0}}, **options
    ) as stack:
        return asyncio.run(_measure(conditions, stack, quantum, capacity))


async def _measure(conditions: Conditions, stack: LocalStack, quantum: float, capacity: int) -> list[Result]:
    num_tensors = _KEPT_BYTES // TABLE_PART_BYTES
    async with AsyncExitStack() as contexts:
        notebooks = []
        for number, user in enumerate(_USERS):
            conditions.say(f"preparing the notebook of {user}")
            notebook = await contexts.enter_async_context(
                open_notebook(gateway_route(stack, user), patience=2 * _LONGEST)
            )
            await notebook.run(PREPARE_TABLE.format(seed=number, num_tensors=num_tensors))
            notebooks.append(notebook)
        *trainers, visitor = notebooks
        trainings = [asyncio.create_task(notebook.execute(_TRAIN)) for notebook in trainers]
        before = await read_status(stack)
        began = time.monotonic()
        is_quick = conditions.effort.quick
        watch = _Watch(before, _QUICK_ROUNDS if is_quick else _ROUNDS, _QUICK_LONGEST if is_quick else _LONGEST)
        visits, waits = await asyncio.gather(_visit(conditions, visitor, watch), watch.run(stack))
        elapsed, after = time.monotonic() - began, await read_status(stack)
        # Interrupted one after the other, each would wait for its turn once more: their kernels are shut down instead.
        for training in trainings:
            if training.done():
                raise BenchmarkFailed(f"an endless training ended: {(await training).error or 'just so'}")
            training.cancel()
    moves, copying = _moved(before, after)
    transfer = copying / max(1, moves)
    bound = len(_USERS) * (max(quantum, QUANTUM_OVER_TRANSFER * transfer) + transfer)
    longest = max([*waits.values(), *visits])
    what = (
        f"four endless trainings and one user's short cells, {format_bytes(_KEPT_BYTES)} each on a device of "
        f"{format_bytes(capacity)}, memory quantum {brief(quantum)}, watched for {brief(elapsed)}"
    )
    return [
        Result(
            metric="longest_wait_ratio",
            value=longest / bound,
            unit="ratio",
            target=Target("<=", 1.5),
            how=f"Longest wait for memory ({brief(longest)}) over five turns of a quantum and a transfer "
            f"({brief(bound)}), of {what}: longest of the trainings {brief(max(waits.values()))}, of "
            f"{len(visits)} short cells {brief(max(visits))}.",
        ),
        Result(
            metric="copy_share",
            value=copying / elapsed,
            unit="ratio",
            target=Target("<=", 0.12),
            how=f"Time spent on moving memory out and back ({moves} turns, {brief(transfer)} each) over all of it, of "
            f"{what}.",
        ),
    ]


def _moved(before: StatusDocument, after: StatusDocument) -> tuple[int, float]:
    """Return how often memory came back between two status documents, and the seconds spent on all moves."""

    def copying(status: StatusDocument) -> float:
        return sum(entry.offload_seconds + entry.restore_seconds for entry in status.sessions)

    def moves(status: StatusDocument) -> int:
        return sum(entry.restores for entry in status.sessions)

    return moves(after) - moves(before), copying(after) - copying(before)


class _Watch:
    """Looks at who waits for memory, until all have had some turns or it takes too long.

    Parameters
    ----------
    before
        The status document from which turns are counted.
    rounds, longest
        Turns of each, and seconds.
    """

    def __init__(self, before: StatusDocument, rounds: int, longest: float) -> None:
        self._before = {entry.id: entry.restores for entry in before.sessions}
        self._rounds = rounds
        self._until = time.monotonic() + longest
        self._num_turns = 0
        self.is_over = False

    @property
    def progress(self) -> str:
        """A few words."""
        return f"{self._num_turns} turns of {self._rounds * len(self._before)}"

    async def run(self, stack: LocalStack) -> Mapping[str, float]:
        """Return for each trainer the longest time for which it waited for memory."""
        longest = dict.fromkeys(_TRAINERS, 0.0)
        since: dict[str, float] = {}
        while not self.is_over:
            now, sessions = time.monotonic(), (await read_status(stack)).sessions
            for session in sessions:
                user = session.user
                if session.waiting_for not in ("memory", "restore"):
                    since.pop(user, None)
                elif user in longest:
                    longest[user] = max(longest[user], now - since.setdefault(user, now))
            turns = [entry.restores - self._before[entry.id] for entry in sessions]
            self._num_turns = sum(turns)
            self.is_over = min(turns) >= self._rounds or now > self._until
            await asyncio.sleep(_LOOK)
        return longest


async def _visit(conditions: Conditions, visitor: Notebook, watch: _Watch) -> Sequence[float]:
    """Run short cells with pauses; return how long each took."""
    taken = []
    while not watch.is_over:
        conditions.say(f"short cells beside four trainings that do not fit: {watch.progress}")
        begun = time.monotonic()
        if not await visitor.value(CHECK_TABLE):
            raise BenchmarkFailed("the data of a notebook that was moved out and back changed.")
        taken.append(time.monotonic() - begun)
        await asyncio.sleep(_THINKING)
    return taken
