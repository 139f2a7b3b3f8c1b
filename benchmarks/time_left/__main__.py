"""Run or read long cells beside other people's work, and print what their users were told.

    python -m benchmarks.time_left [--seeds N]             simulated cells, through the real scheduling core
    python -m benchmarks.time_left --record FILE           real sessions, for some minutes, and their record of events
    python -m benchmarks.time_left --read FILE             an executor's record of events (``logs/events.jsonl``)

A look is near if the figure, rounded as it is shown, is within 30 % of the time that the cell still took.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.time_left.judging import Told, judge, table
from benchmarks.time_left.sessions import read, record
from benchmarks.time_left.simulated import COMPANY, CONFIG, SHAPES, simulate
from sharedkernel.errors import SharedKernelError
from sharedkernel.system.signals import ended_by_signals

#: seconds from which on a cell is long: simulated ones take minutes, and those of notebooks less
_LONG, _LONG_HERE = 60.0, 10.0


def main() -> None:
    """Print the tables.

    Raises
    ------
    SystemExit
        With 2 when it could not be run.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_left", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="runs of each shape in each company (default: 1)")
    parser.add_argument("--record", type=Path, help="run real sessions, and keep the record in this file")
    parser.add_argument("--read", type=Path, help="judge the record in this file")
    parser.add_argument("--notebooks", type=Path, default=os.environ.get("SHAREDKERNEL_NOTEBOOKS"))
    options = parser.parse_args()
    try:
        if options.record is not None:
            with ended_by_signals():
                record(sorted(Path(options.notebooks).glob("*/nb.ipynb")) if options.notebooks else [], options.record)
        place = options.record or options.read
        print(table(_simulated(options.seeds) if place is None else _recorded(place)))  # noqa: T201
    except (SharedKernelError, OSError) as error:
        print(f"time_left: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


def _simulated(seeds: int) -> list[Told]:
    told = []
    for number, shape in enumerate(SHAPES):
        for company in COMPANY:
            for seed in range(seeds):
                log = simulate(shape, company, f"{number} {seed}")
                told += judge(log, CONFIG, lambda user, source: source.partition("/")[0], _LONG)
    return told


def _recorded(place: Path) -> list[Told]:
    log, config = read(place)
    return judge(log, config, lambda user, source: user, _LONG_HERE)


if __name__ == "__main__":
    main()
