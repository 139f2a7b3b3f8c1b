"""Run a folder of notebooks on a stock kernel and on Shared GPU, and compare how they end and what they show.

First each notebook by itself: twice on the stock kernel, since what differs there says nothing, then on Shared GPU.
With `--rounds N`, then N times all of them divided among users who work at the same time, on a device of random size
that is too small for all: whether memory was offloaded, whether anybody got stuck, and whether outputs are the same.

A notebook is a folder with `nb.ipynb` and its files. Prints tables, or JSON. Exits with 0 when every target was met,
with 1 when one was not, and with 2 when it could not be run.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.notebooks.alone import Measured, measure
from benchmarks.notebooks.beside import Conditions, Round, run_round
from benchmarks.notebooks.comparing import Difference
from benchmarks.notebooks.running import Run
from benchmarks.stack.results import Result, Target
from sharedkernel.errors import SharedKernelError
from sharedkernel.system.signals import ended_by_signals
from sharedkernel.units import format_bytes, parse_bytes

#: environment variable that names the folder
_VARIABLE = "SHAREDKERNEL_NOTEBOOKS"
#: the smallest and the largest device, over the memory of the notebook that has most, with what it keeps besides
_SMALLEST, _LARGEST = 1.25, 1.5
#: characters of an output in a table
_EXCERPT = 300
#: columns of a terminal that the table needs
_WIDTH = 120


def main() -> None:
    """Run it.

    Raises
    ------
    SystemExit
        With 0 when every target was met, 1 when one was not, 2 when it could not be run.
    """
    options = _parse()
    try:
        with ended_by_signals(), TemporaryDirectory(prefix="sk-inductor-") as cache:
            folders = _find(options)
            # What torch.compile keeps on disk from earlier runs decides which warnings a cell shows: one cache for all.
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            measured, rounds = asyncio.run(_measure(options, folders))
    except SharedKernelError as error:
        print(f"notebooks: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    results = [*_alone_results(measured), *(_beside_results(rounds) if rounds else [])]
    if options.json:
        print(json.dumps(_document(measured, rounds, results), indent=2))  # noqa: T201
    else:
        _show(measured, rounds, results)
    sys.exit(0 if all(result.met for result in results) else 1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.notebooks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--notebooks", type=Path, default=os.environ.get(_VARIABLE), help=f"the folder (default: ${_VARIABLE})"
    )
    parser.add_argument("--only", default="", help="names of notebooks, with commas between (default: all)")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of one notebook (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=0, help="of all users beside each other (default: none)")
    parser.add_argument("--users", type=int, default=4, help="in a round (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds before a cell in a round (default: 0.2)")
    parser.add_argument(
        "--keep", type=parse_bytes, default="384MiB", help="memory that each has besides, in a round (default: 384MiB)"
    )
    parser.add_argument(
        "--capacity", type=parse_bytes, help="of the device in every round (default: random, too small for all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of capacities and orders (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args()


def _find(options: argparse.Namespace) -> list[Path]:
    if options.notebooks is None:
        raise SharedKernelError(f"No notebooks to run: set {_VARIABLE} to a folder of them, or give --notebooks.")
    folders = sorted(path.parent for path in options.notebooks.glob("*/nb.ipynb"))
    wanted = set(filter(None, options.only.split(",")))
    if missing := wanted - {folder.name for folder in folders}:
        raise SharedKernelError(f"{options.notebooks} has no notebook named {', '.join(sorted(missing))}.")
    if not folders:
        raise SharedKernelError(f"{options.notebooks} has no notebooks: it needs folders with a file nb.ipynb in each.")
    return [folder for folder in folders if not wanted or folder.name in wanted]


async def _measure(options: argparse.Namespace, folders: Sequence[Path]) -> tuple[list[Measured], list[Round]]:
    measured = await measure(folders, options.limit, _say)
    most = max(one.peak_bytes for one in measured) + options.keep
    conditions = Conditions(
        users=options.users, pause=options.pause, limit=options.limit * options.users, kept_bytes=options.keep
    )
    chance = random.Random(options.seed)
    rounds = []
    for number in range(options.rounds):
        capacity = options.capacity or int(most * chance.uniform(_SMALLEST, _LARGEST))
        rounds.append(await run_round(measured, capacity, conditions, chance, _say))
        _say(f"round {number + 1}: {_round_line(rounds[-1])}")
    return measured, rounds


# --- what is said -----------------------------------------------------------------------------------------------------


def _alone_results(measured: Sequence[Measured]) -> list[Result]:
    ratios = [one.time_ratio for one in measured]
    otherwise = [one.name for one in measured if one.shared.outcome != one.stock[0].outcome]
    differing = [len(one.beyond_floor(one.shared)) for one in measured]
    num_cells = sum(len(one.shared.cells) for one in measured)
    floor = sum(len(one.floor) for one in measured)
    return [
        _count("different_endings", len(otherwise), f"of {len(measured)} notebooks: {', '.join(otherwise) or 'none'}."),
        _count(
            "different_outputs",
            sum(differing),
            f"of {num_cells} cells, in {sum(map(bool, differing))} notebooks, in more than numbers; {floor} more "
            "differ from one run on the stock kernel to the next.",
        ),
        Result(
            metric="time_ratio",
            value=statistics.median(ratios),
            unit="ratio",
            target=Target("<=", 1.0),
            how=f"Time of a notebook's cells on Shared GPU over that on a stock kernel, median of {len(ratios)} "
            f"notebooks; from {min(ratios):.2f} to {max(ratios):.2f}.",
        ),
    ]


def _beside_results(rounds: Sequence[Round]) -> list[Result]:
    offloads = [one.num_offloads for one in rounds]
    return [
        _count("stuck", sum(len(one.stuck) for one in rounds), f"of notebooks in {len(rounds)} rounds."),
        _count("different_endings_beside", sum(len(one.otherwise) for one in rounds), "of notebooks in all rounds."),
        _count(
            "different_outputs_beside",
            sum(len(found) for one in rounds for found in one.differing.values()),
            "of cells in all rounds, in more than numbers and beyond what differs on the stock kernel.",
        ),
        Result(
            metric="fewest_offloads",
            value=min(offloads),
            unit="ratio",
            target=Target(">=", 1),
            how=f"Offloads in the round that had fewest; median {statistics.median(offloads):g}. The longest wait of "
            f"one session was {max(one.longest_wait for one in rounds):.1f} s.",
        ),
    ]


def _count(metric: str, value: int, how: str) -> Result:
    return Result(metric=metric, value=value, unit="ratio", target=Target("<=", 0), how=f"Number {how}")


def _round_line(one: Round) -> str:
    return (
        f"{format_bytes(one.capacity_bytes)}, {one.seconds:.0f} s, {one.num_offloads} offloads, longest wait "
        f"{one.longest_wait:.1f} s, {len(one.stuck)} stuck, {len(one.otherwise)} ended otherwise, "
        f"{sum(map(len, one.differing.values()))} cells differ"
    )


def _document(measured: Sequence[Measured], rounds: Sequence[Round], results: Sequence[Result]) -> dict[str, Any]:
    return {
        "name": "notebooks",
        "results": [result.as_dict() for result in results],
        "notebooks": [
            {
                "name": one.name,
                "outcomes": [run.outcome for run in (*one.stock, one.shared)],
                "seconds": [run.seconds for run in (*one.stock, one.shared)],
                "slowest": [_slowest(run) for run in (*one.stock, one.shared)],
                "peak_bytes": one.peak_bytes,
                "floor": sorted(one.floor),
                "differing": [_as_dict(found) for found in one.beyond_floor(one.shared)],
            }
            for one in measured
        ],
        "rounds": [
            dataclasses.asdict(one)
            | {"differing": {name: [_as_dict(each) for each in found] for name, found in one.differing.items()}}
            for one in rounds
        ],
    }


def _slowest(run: Run) -> dict[str, Any] | None:
    cell = max(run.cells, key=lambda cell: cell.seconds, default=None)
    return None if cell is None else {"cell": cell.index, "seconds": cell.seconds}


def _as_dict(found: Difference) -> dict[str, Any]:
    return {"cell": found.index, "stock": found.first, "shared": found.other}


def _show(measured: Sequence[Measured], rounds: Sequence[Round], results: Sequence[Result]) -> None:
    console = Console()
    console.width = max(console.width, _WIDTH)
    table = Table("notebook", "stock", "Shared GPU", "cells", "stock, s", "Shared GPU, s", "memory", "floor", "differ")
    for one in measured:
        seconds = statistics.mean(run.seconds for run in one.stock)
        table.add_row(
            one.name, one.stock[0].outcome, one.shared.outcome, str(len(one.shared.cells)), f"{seconds:.1f}",
            f"{one.shared.seconds:.1f}", format_bytes(one.peak_bytes), str(len(one.floor)),
            str(len(one.beyond_floor(one.shared))),
        )  # fmt: skip
    console.print(table)
    for one in measured:
        _show_differences(console, one.name, one.beyond_floor(one.shared))
    for number, each in enumerate(rounds):
        console.print(f"round {number + 1}: {_round_line(each)}")
        for name, found in each.differing.items():
            _show_differences(console, name, found)
    for result in results:
        console.print(f"{'met   ' if result.met else 'MISSED'} {result.metric} {result.value:.3g}: {result.how}")


def _show_differences(console: Console, name: str, differing: Sequence[Difference]) -> None:
    for found in differing:
        console.print(f"{name}, cell {found.index}:", style="bold")
        for side, outputs in (("stock", found.first), ("Shared GPU", found.other)):
            console.print(f"  {side}: {str(outputs)[:_EXCERPT]}", markup=False, highlight=False)


def _say(what: str) -> None:
    print(f"  {what} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
