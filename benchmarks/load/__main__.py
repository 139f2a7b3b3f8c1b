"""Put a crowd on the gateway and print figures beside their targets, as JSON."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.load import lag
from benchmarks.load.crowd import Crowd, gather
from benchmarks.load.footprint import Growth, median_pss_bytes, services
from benchmarks.stack.client import Route
from benchmarks.stack.results import Result, Target, Unit, brief, percentile
from benchmarks.stack.servers import StockServer, gateway_route
from sharedkernel.errors import SharedKernelError
from sharedkernel.local_stack import LocalStack
from sharedkernel.system.signals import ended_by_signals
from sharedkernel.units import format_bytes

_PERCENTS = (50, 95, 99)
#: turns that each side has while nobody is busy, and seconds of one
_TURNS, _TURN = 5, 4.0
#: generous estimates, to see how many kernels there is memory for, in bytes
_SESSION_BYTES, _STOCK_BYTES = 48 << 20, 192 << 20
#: chance that a notebook is closed and opened before a cell of a soak: each several times, as in a day
_REOPEN = 0.1
#: messages through each notebook's queues before a soak: a queue of zmq takes up 64 bytes more with each message until
#: its two chunks of 256 have been filled once, for 200 notebooks 10 MiB
_MESSAGES_BEFORE = 512
#: minutes of load before a soak: as far back as the executor remembers for `sharedkernel trace`
_MINUTES_BEFORE = 10.0
#: what a service may grow by in an hour of a soak: a day of it is then still less than a notebook
_MOST_GROWTH = 4 * 1024**2


def main() -> None:
    """Run the load.

    Raises
    ------
    SystemExit
        With 0 when every target was met, 1 when one was not, 2 when it could not be run.
    """
    options = _parse()
    try:
        with ended_by_signals():
            results = asyncio.run(_measure(options))
    except SharedKernelError as error:
        print(f"load: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    print(json.dumps({"name": "load", "results": [result.as_dict() for result in results]}, indent=2))  # noqa: T201
    sys.exit(0 if all(result.met for result in results) else 1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200, help="notebooks (default: %(default)s)")
    parser.add_argument("--users", type=int, default=50, help="whose they are (default: %(default)s)")
    parser.add_argument("--busy", type=float, default=0.2, help="share with a cell open (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, help="of a soak instead, which closes and opens notebooks too (a warm-up goes before)"
    )
    parser.add_argument(
        "--stock", type=int, help="idle kernels of the stock server; 0: none (default: as many, if memory allows)"
    )
    parser.add_argument("--capacity", default="8GiB", help="of the device (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all choices (default: %(default)s)")
    return parser.parse_args()


async def _measure(options: argparse.Namespace) -> list[Result]:
    num_stock = _affordable(options.sessions) if options.stock is None else options.stock
    users = [f"user-{number}" for number in range(options.users)]
    soak = options.minutes is not None
    with LocalStack(users=users, capacity=options.capacity) as stack:
        routes = [gateway_route(stack, users[number % len(users)]) for number in range(options.sessions)]
        async with _gathered(routes, options.seed, "sessions") as crowd:
            quiet = await _beside_stock(crowd, num_stock, options.seed) if num_stock else None
            crowd.tally.round_trips = []
            seconds = 60 * options.minutes if soak else options.seconds
            num_busy = max(1, round(options.busy * options.sessions))
            if soak:
                await _warm_up(crowd, num_busy)
            growth = Growth(services(stack))
            _say(f"{num_busy} of them busy for {seconds:g} s")
            async with _following(growth), lag.measured(stack.gateway_url) as answers:
                await asyncio.gather(
                    crowd.stay_busy(num_busy, seconds, reopen=_REOPEN if soak else 0.0), crowd.echo(seconds)
                )
    return [
        *_correctness(crowd),
        *(_round_trips(crowd, quiet) if quiet is not None else []),
        _lag(answers),
        *([_memory(quiet, options.sessions)] if quiet is not None else []),
        *(_growth(growth) if soak else []),
    ]


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Quiet:
    """What both sides gave while nobody was busy."""

    num_stock: int
    #: seconds of trivial cells, and bytes of a kernel
    stock: list[float]
    stock_bytes: float
    ours: list[float]
    our_bytes: float


async def _beside_stock(crowd: Crowd, count: int, seed: int) -> _Quiet:
    """Time trivial cells here and at a stock server with *count* kernels, by turns; that server is gone afterwards."""
    with StockServer() as server:
        async with _gathered([server.stock] * count, seed, "stock kernels") as stock:
            _say("`1+1` in both by turns, while nobody is busy")
            for _ in range(_TURNS):
                await stock.echo(_TURN)
                await crowd.echo(_TURN)
            return _Quiet(
                num_stock=count,
                stock=stock.tally.round_trips,
                stock_bytes=median_pss_bytes(stock.pids),
                ours=crowd.tally.round_trips,
                our_bytes=median_pss_bytes(crowd.pids),
            )


async def _warm_up(crowd: Crowd, num_busy: int) -> None:
    """Fill what is bounded and fills once, so that only what grows for ever is left to be seen."""
    _say(f"{_MESSAGES_BEFORE} messages through each, then {num_busy} busy for {_MINUTES_BEFORE:g} min, not measured")
    await crowd.settle_in(_MESSAGES_BEFORE)
    await crowd.stay_busy(num_busy, 60 * _MINUTES_BEFORE, reopen=_REOPEN)


def _affordable(wanted: int) -> int:
    """Return how many of the stock kernels *wanted* there is memory for, beside as many sessions."""
    spare = psutil.virtual_memory().available - wanted * _SESSION_BYTES
    return max(1, min(wanted, spare // _STOCK_BYTES))


@contextlib.asynccontextmanager
async def _gathered(routes: Sequence[Route], seed: int, what: str) -> AsyncIterator[Crowd]:
    _say(f"starting {len(routes)} {what}")
    begun = time.monotonic()
    async with gather(routes, random.Random(seed)) as crowd:
        _say(f"{len(routes)} {what} are there after {brief(time.monotonic() - begun)}")
        yield crowd


@contextlib.asynccontextmanager
async def _following(growth: Growth) -> AsyncIterator[None]:
    task = asyncio.create_task(growth.follow())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- what is said -----------------------------------------------------------------------------------------------------


def _correctness(crowd: Crowd) -> list[Result]:
    tally = crowd.tally
    cells = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.cells.items()))
    first = f" The first: {tally.wrong[0]}." if tally.wrong else ""
    return [
        Result(
            metric="wrong_cells",
            value=len(tally.wrong),
            unit="ratio",
            target=Target("<=", 0),
            how=f"Number of cells that failed or gave something else than they must ({cells}; {tally.reopened} "
            f"notebooks closed and opened anew; on average {statistics.mean(tally.busy):.1f} of {len(crowd.desks)} "
            f"notebooks busy; a cell took {_figures(tally.cell_seconds)}).{first}",
        )
    ]


def _round_trips(crowd: Crowd, quiet: _Quiet) -> list[Result]:
    stock = f"{_figures(quiet.stock)} at a stock server with {quiet.num_stock} idle kernels"
    return [
        Result(
            metric=f"{name}_p{percent}",
            value=percentile(values, percent) / percentile(quiet.stock, percent),
            unit="ratio",
            target=Target("<=", bounds[percent]),
            how=f"`1+1` in idle notebooks {when}: {_figures(values)} (p50 / p95 / p99), beside {stock}.",
        )
        for name, values, when, bounds in (
            ("idle_round_trip", quiet.ours, "by turns while nobody is busy", {50: 1.3, 95: 1.5, 99: 2.0}),
            ("busy_round_trip", crowd.tally.round_trips, "while the others are busy", {50: 10, 95: 20, 99: 30}),
        )
        for percent in _PERCENTS
    ]


def _lag(answers: list[float]) -> Result:
    return Result(
        metric="gateway_lag_p99",
        value=percentile(answers, 99),
        unit="seconds",
        target=Target("<", 0.1),
        how=f"Longest time, but for 1 %, that the gateway took to answer GET /api while the crowd was busy, asked "
        f"every 50 ms by a process of its own; median {brief(percentile(answers, 50))}, longest {brief(max(answers))}.",
    )


def _memory(quiet: _Quiet, count: int) -> Result:
    return Result(
        metric="session_memory",
        value=quiet.our_bytes / quiet.stock_bytes,
        unit="ratio",
        target=Target("<=", 0.4),
        how=f"Memory of an idle kernel that has imported torch, its part of what is shared included (PSS): "
        f"{format_bytes(quiet.our_bytes)} in each of {count} sessions, {format_bytes(quiet.stock_bytes)} in each of "
        f"{quiet.num_stock} stock kernels (medians).",
    )


def _growth(growth: Growth) -> list[Result]:
    results = []
    for name, samples in growth.samples.items():
        first, last = samples[0], samples[-1]
        quarters = [
            format_bytes(round(growth.bytes_per_hour(name, number / 4, (number + 1) / 4))) for number in range(4)
        ]
        over = f"Slope over {brief(last.at - first.at)} with {len(samples)} samples; "
        memory = Target("<=", _MOST_GROWTH)
        figures: list[tuple[str, float, Unit, Target, str]] = [
            (
                "bytes",
                growth.bytes_per_hour(name),
                "bytes",
                memory,
                f"it used {format_bytes(first.anonymous_bytes)} of memory of its own at first, "
                f"{format_bytes(last.anonymous_bytes)} at last; quarter by quarter {', '.join(quarters)} per hour.",
            ),
            (
                "held_bytes",
                growth.held_bytes_per_hour(name),
                "bytes",
                memory,
                f"it held {format_bytes(first.held_bytes)} of memory that it may write to at first, used or not, "
                f"{format_bytes(last.held_bytes)} at last: what it uses can grow to this, and no further.",
            ),
            (
                "descriptors",
                growth.descriptors_per_hour(name),
                "ratio",
                Target("<", 1.0),
                f"{first.num_descriptors} at first, {last.num_descriptors} at last.",
            ),
        ]
        results += [
            Result(metric=f"{name}_{what}_per_hour", value=value, unit=unit, target=target, how=over + how)
            for what, value, unit, target, how in figures
        ]
    return results


def _figures(seconds: list[float]) -> str:
    return " / ".join(brief(percentile(seconds, percent)) for percent in _PERCENTS)


def _say(what: str) -> None:
    print(f"  {what} (load {os.getloadavg()[0]:.1f})", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
