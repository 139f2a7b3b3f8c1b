"""A campaign of kills aimed at hand-overs: trainings hand the device to each other, and die in the middle of that.

In each round one of the trainings lies in wait in one of the windows of a hand-over (`tests/executor/hand_overs.py`),
and kills itself or the executor there. A session that has died is followed by another one, an executor by the next.
Afterwards

- every training that was not killed has gone on to its end;
- the device's own log shows no two holders at a time;
- each round's survivors have used the device after it.

Run as ``python -m tests.faults.hand_over_kills --kills 100``; it prints its seed, each round, and one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.executor.hand_overs import (
    OPTIONS,
    TRAIN,
    TRAINED,
    WINDOWS,
    assert_one_at_a_time,
    end,
    hand_overs,
    intervals,
    prepare,
    set_trap,
)
from tests.executor.harness import Executor, ExecutorProcess, Notebook, Outcome, until

#: what is killed, and how often compared with the others
VICTIMS = {"session": 3, "executor": 2}
#: trainings at a time
_TRAININGS = 3
#: iterations of every survivor that are waited for after a kill
_ITERATIONS = 3


class HandOverKills:
    """Trainings on one executor, and kills.

    Parameters
    ----------
    executor
        Connected.
    log
        The device's own, not there yet.
    seed
        Of everything random.
    """

    def __init__(self, executor: Executor, log: Path, seed: int) -> None:
        self._executor = executor
        self._log = log
        self._random = random.Random(seed)
        self._number = 0
        #: by name
        self._trainings: dict[str, tuple[Notebook, asyncio.Task[Outcome]]] = {}
        #: how often what was killed in which window
        self.kills: Counter[str] = Counter()

    async def _add(self) -> None:
        self._number += 1
        name = f"user{self._number}"
        (notebook,) = await prepare(self._executor, self._log, name)
        self._trainings[name] = notebook, asyncio.create_task(notebook.run(TRAIN.format(seconds=1e9), timeout=1e9))

    async def run(self, number: int, say: Callable[[str], None]) -> None:
        """Kill *number* times, and have the trainings come to their ends.

        Raises
        ------
        AssertionError
            When something was lost, or two sessions held the device at a time.
        """
        for _ in range(_TRAININGS):
            await self._add()
        for done in range(number):
            await self._survive(set(self._trainings))
            window = self._random.choice(list(WINDOWS))
            victim = self._random.choices(list(VICTIMS), list(VICTIMS.values()))[0]
            name = self._random.choice(list(self._trainings))
            say(f"{done + 1}/{number} {victim} in the window '{window}' of {name}")
            await self._kill(victim, name, window)
            self.kills[f"{victim}: {window}"] += 1
        await self._survive(set(self._trainings))
        end(self._log)
        outcomes = await asyncio.gather(*(task for _, task in self._trainings.values()))
        assert [outcome.text for outcome in outcomes] == [TRAINED] * _TRAININGS, outcomes
        assert_one_at_a_time(self._log)

    async def _kill(self, victim: str, name: str, window: str) -> None:
        process, left = self._executor.process, self._random.randint(1, 3)
        if victim == "executor":
            set_trap(self._log, name, window, process.process.pid, signal.SIGKILL, left)
            await asyncio.to_thread(process.process.wait, 120)
            await asyncio.to_thread(process.start)
            await self._executor.connect()
            return
        notebook, task = self._trainings.pop(name)
        set_trap(self._log, name, window, 0, signal.SIGKILL, left)

        async def is_dead() -> bool:
            return notebook.session not in {record.session for record in await self._executor.client.sessions()}

        await until(is_dead, f"{name} has died")
        task.cancel()
        await self._survive(set(self._trainings))
        await self._add()

    async def _survive(self, names: set[str]) -> None:
        """Return once all of *names* have used the device since now."""
        since = time.monotonic()

        async def have() -> bool:
            assert not any(task.done() for _, task in self._trainings.values()), "a training has ended"
            if not self._log.exists():
                return False
            seen = Counter(name for began, _, name in intervals(self._log) if began > since)
            return all(seen[name] >= _ITERATIONS for name in names)

        await until(have, f"{', '.join(sorted(names))} go on")


def run_kills(number: int, seed: int, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run a campaign on an executor of its own, and return what happened.

    Raises
    ------
    AssertionError
        When something was lost, or two sessions held the device at a time.
    """
    process = ExecutorProcess(*OPTIONS)
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="sk-log-") as directory:
            log = Path(directory, "device")

            async def main() -> HandOverKills:
                async with Executor(process) as executor:
                    kills = HandOverKills(executor, log, seed)
                    await kills.run(number, say)
                    return kills

            kills = asyncio.run(main())
            iterations = len(intervals(log))
        # of what every executor had recorded before it was killed
        recorded = hand_overs(process)
    finally:
        process.close()
    return {
        "seed": seed,
        "kills": dict(sorted(kills.kills.items())),
        "num_kills": kills.kills.total(),
        "iterations": iterations,
        "recorded_hand_overs": recorded,
        "wall_seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)  # noqa: T201
    report = run_kills(options.kills, options.seed, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    print(json.dumps(report, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
