"""Who gets how much of the device while all want all of it, by the service that the executor counts.

The processor time that the system counts for each user's processes is told beside it: on the host device the two should
agree, and the executor has no part in the second.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import MappingProxyType

import psutil

from benchmarks.stack.client import open_notebook
from benchmarks.stack.results import Conditions, Result, Target, brief
from benchmarks.stack.servers import gateway_route
from benchmarks.stack.trainings import (
    ENDLESS,
    in_threads,
    prepare,
    process_id,
    read_status,
    service_by_user,
    until_under_way,
)
from sharedkernel.cli.demo import jain_index
from sharedkernel.local_stack import LocalStack

#: users and the iterations of their trainings, in seconds
_THREE_USERS = {"ada": 0.002, "grace": 0.020, "hedy": 0.200}
_SHARES = {"ada": 1.0, "grace": 2.0, "hedy": 4.0}
_NUM_NOTEBOOKS = {"ada": 5, "grace": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What each user got while all of them trained."""

    #: device-seconds by user, as the executor counts them
    service: Mapping[str, float]
    #: processor seconds by user, as the system counts them
    processor: Mapping[str, float]
    #: iteration of each training measured alone, in seconds
    iterations: Sequence[float]

    def parts(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Return what each user got over what was due to them."""
        due = sum(self.service.values()) / sum(shares.values())
        return {user: got / (due * shares[user]) for user, got in self.service.items()}

    def described(self) -> str:
        """Return the figures for a sentence."""
        by_user = ", ".join(f"{user} {seconds:.2f}" for user, seconds in self.service.items())
        processor = sum(self.processor.values())
        percent = " / ".join(f"{100 * seconds / processor:.1f}" for seconds in self.processor.values())
        iterations = ", ".join(brief(seconds) for seconds in self.iterations)
        return f"device-seconds {by_user}; processor time {percent} %; iterations alone {iterations}"


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `fairness`."""
    return [
        _equal_shares(conditions),
        _unequal_shares(conditions),
        _many_notebooks(conditions),
        _thread_and_cell(conditions, num_threads=1),
        _thread_and_cell(conditions, num_threads=3),
    ]


def _equal_shares(conditions: Conditions) -> Result:
    seconds = conditions.effort.seconds(20)
    conditions.say(f"three users with equal shares for {seconds:g} s")
    equal = dict.fromkeys(_THREE_USERS, 1.0)
    windows = _contest(conditions, list(_THREE_USERS.items()), equal, seconds)
    return Result(
        metric="jain_equal",
        value=statistics.median(jain_index(list(window.parts(equal).values())) for window in windows),
        unit="ratio",
        target=Target(">=", 0.98),
        how="Jain's index of the device-seconds of three users with equal shares who train for "
        f"{_told(windows, seconds)}.",
    )


def _unequal_shares(conditions: Conditions) -> Result:
    seconds = conditions.effort.seconds(60)
    conditions.say(f"three users with shares 1:2:4 for {seconds:g} s")
    windows = _contest(conditions, list(_THREE_USERS.items()), _SHARES, seconds)
    return Result(
        metric="share_error",
        value=statistics.median(max(abs(part - 1) for part in window.parts(_SHARES).values()) for window in windows),
        unit="ratio",
        target=Target("<=", 0.05),
        how="Largest deviation of a user's device-seconds from what is due to their share, relative to that, for three "
        f"users with shares 1:2:4 who train for {_told(windows, seconds)}.",
    )


def _many_notebooks(conditions: Conditions) -> Result:
    seconds = conditions.effort.seconds(20)
    conditions.say(f"a user with five notebooks and a user with one for {seconds:g} s")
    notebooks = [(user, 0.005) for user, count in _NUM_NOTEBOOKS.items() for _ in range(count)]
    windows = _contest(conditions, notebooks, dict.fromkeys(_NUM_NOTEBOOKS, 1.0), seconds)
    many, one = _NUM_NOTEBOOKS
    return Result(
        metric="many_notebooks",
        value=statistics.median(window.service[many] / window.service[one] for window in windows),
        unit="ratio",
        target=Target("<=", 1.05),
        how=f"Device-seconds of {many}'s five notebooks over those of {one}'s one, with equal shares, all training for "
        f"{_told(windows, seconds)}.",
    )


def _thread_and_cell(conditions: Conditions, *, num_threads: int) -> Result:
    seconds = conditions.effort.seconds(30)
    what = "a thread" if num_threads == 1 else f"{num_threads} threads"
    conditions.say(f"a user who trains in {what} of a notebook and a user who does in a cell for {seconds:g} s")
    equal = {"ada": 1.0, "grace": 1.0}
    windows = _contest(conditions, [(user, 0.02) for user in equal], equal, seconds, {"ada": num_threads})
    return Result(
        metric="thread_and_cell" if num_threads == 1 else "threads_and_cell",
        value=statistics.median(jain_index(list(window.parts(equal).values())) for window in windows),
        unit="ratio",
        target=Target(">=", 0.98),
        how=f"Jain's index of the device-seconds of ada, who trains in {what} of a notebook, and grace, who does in a "
        f"cell, with equal shares, for {_told(windows, seconds)}.",
    )


def _told(windows: Sequence[Window], seconds: float) -> str:
    runs = "" if len(windows) == 1 else f", median of {len(windows)} runs; the last one"
    return f"{seconds:g} s{runs}: {windows[-1].described()}"


def _contest(
    conditions: Conditions,
    notebooks: Sequence[tuple[str, float]],
    shares: Mapping[str, float],
    seconds: float,
    threads: Mapping[str, int] = MappingProxyType({}),
) -> list[Window]:
    """Have all *notebooks* (user, iteration in seconds) train at once; return what happened in each run.

    The users in *threads* train in so many threads of each notebook, the others in a cell.
    """
    quotas = {"users": {user: {"share": share} for user, share in shares.items()}}
    with LocalStack(users=list(shares), quotas=quotas, **conditions.stack_options) as stack:
        return asyncio.run(_train(stack, notebooks, threads, seconds, conditions.effort.repeats or 1))


async def _train(
    stack: LocalStack, notebooks: Sequence[tuple[str, float]], threads: Mapping[str, int], seconds: float, runs: int
) -> list[Window]:
    async with AsyncExitStack() as contexts:
        opened = [
            (user, await contexts.enter_async_context(open_notebook(gateway_route(stack, user))))
            for user, _ in notebooks
        ]
        iterations = [
            await prepare(notebook, "mlp", iteration_seconds=iteration)
            for (_, notebook), (_, iteration) in zip(opened, notebooks, strict=True)
        ]
        processes = [(user, psutil.Process(await process_id(notebook))) for user, notebook in opened]
        for user, notebook in opened:
            if user in threads:
                await contexts.enter_async_context(in_threads(notebook, threads[user]))
            else:
                await contexts.enter_async_context(notebook.endless(ENDLESS))
        users = list(dict.fromkeys(user for user, _ in notebooks))
        await until_under_way(stack, users)
        return [await _watch(stack, users, processes, iterations, seconds) for _ in range(runs)]


async def _watch(
    stack: LocalStack,
    users: Sequence[str],
    processes: Sequence[tuple[str, psutil.Process]],
    iterations: Sequence[float],
    seconds: float,
) -> Window:
    service, processor = service_by_user(await read_status(stack)), _processor_by_user(processes)
    await asyncio.sleep(seconds)
    service_after, processor_after = service_by_user(await read_status(stack)), _processor_by_user(processes)
    return Window(
        service={user: service_after[user] - service[user] for user in users},
        processor={user: processor_after[user] - processor[user] for user in users},
        iterations=iterations,
    )


def _processor_by_user(processes: Sequence[tuple[str, psutil.Process]]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for user, process in processes:
        times = process.cpu_times()
        seconds[user] = seconds.get(user, 0.0) + times.user + times.system
    return seconds
