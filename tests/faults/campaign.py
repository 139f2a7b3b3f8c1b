"""Fault campaigns: notebooks train while processes around them are killed, stopped and starved at random.

What there is to fail is a backend's: one host (:mod:`tests.faults.one_host`), or three behind a front
(:mod:`tests.faults.three_hosts`). Some faults last while others happen. Afterwards nothing may be lost, wrong or left
over:

- no session that was not itself killed has lost a tensor, and no step's loss differs from an undisturbed run's;
- every printed line was heard exactly once, unless session or relay was killed;
- no service has ended unless it was killed;
- no process, socket, memory file or descriptor is left, and no notebook has two sessions.

The first finding ends a campaign: logs and stories of that moment would be gone at the end. ``python -m
tests.faults.campaign --over hosts --kills 500`` prints its seed, then a table of all faults, and one JSON document at
the end.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.client.relay.support import Notebook
from tests.faults.judge import Fault, as_table, is_clean, make_report
from tests.faults.notebooks import STEPS_PER_CELL, Worker, undisturbed
from tests.faults.server import PATIENCE, ServerNotebook

#: the modules of the backends, each of which has `BACKEND`, a subclass of :class:`Campaign`
BACKENDS = {"host": "tests.faults.one_host", "hosts": "tests.faults.three_hosts"}
#: characters that are shown of a line of a log
_LINE = 250


class Campaign:
    """Notebooks at work on one backend, and faults; within `with` the backend runs.

    Parameters
    ----------
    seed
        Of everything random.
    notebooks
        How many are at work.
    say
        Hears of each fault, and what was logged if something is lost.
    """

    #: what torch calls the device in a session
    torch_device = "cpu"
    #: seconds that a cell may take
    patience = PATIENCE

    def __init__(self, *, seed: int, notebooks: int, say: Callable[[str], None]) -> None:
        self.faults: list[Fault] = []
        self.workers: list[Worker] = []
        #: services that ended though nobody had killed them
        self.ended: list[str] = []
        #: the cells answered: whose, and the seconds that each took
        self.cells: list[tuple[str, float]] = []
        self.say = say
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self._seed = seed
        self._num_notebooks = notebooks

    # --- what a backend does -----------------------------------

    def __enter__(self) -> Campaign:
        """Start it."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """End it."""
        raise NotImplementedError

    def open_notebook(self, name: str) -> Notebook | ServerNotebook:
        """Return a notebook that is not started yet."""
        raise NotImplementedError

    def fail(self, number: int) -> None:
        """Let something fail, by :meth:`record`, if anything may fail now; *number* faults there will be in all."""
        raise NotImplementedError

    def logs(self) -> Iterable[Path]:
        """Return the services' logs."""
        raise NotImplementedError

    def begin(self) -> None:
        """Prepare for the first fault; all notebooks work."""

    def look_after(self) -> None:
        """Start services again that ended by themselves."""

    def end_faults(self) -> None:
        """End those that last."""

    def grown(self) -> dict[str, int]:
        """Return what there is more of than before the first fault, though nothing is there for it."""
        return {}

    def left(self) -> dict[str, list[str]]:
        """Return what is left once all has been stopped."""
        return {}

    def findings(self) -> dict[str, Any]:
        """Return what the report says besides."""
        return {}

    # --- the course of it -----------------------------------

    def run(self, number: int) -> dict[str, Any]:
        """Have *number* faults while the notebooks work; return the report once everybody has answered."""
        with contextlib.ExitStack() as exits:
            undisturbed_one = exits.enter_context(contextlib.ExitStack())
            expected = undisturbed(undisturbed_one.enter_context(self.open_notebook("undisturbed")), self.torch_device)
            undisturbed_one.close()
            for each in range(self._num_notebooks):
                worker = Worker(
                    f"notebook {each}", self.open_notebook, expected, self._answered, self._pacer(each),
                    self.torch_device, self.patience,
                )  # fmt: skip
                worker.notebook.__enter__()
                exits.callback(lambda worker=worker: worker.notebook.__exit__())
                self.workers.append(worker)
            for worker in self.workers:
                worker.start()
                exits.callback(worker.leave)
            exits.callback(self.end_faults)
            self.wait_until(lambda: all(worker.findings.cells for worker in self.workers), "everybody works")
            self.begin()
            while len(self.faults) < number and not self.has_failed and not self._has_findings:
                self.fail(number)
            self.wait_for_answers()
            for worker in self.workers:
                worker.finish()
            for worker in self.workers:
                worker.rests.wait(2 * PATIENCE)
            grown = {} if self.has_failed else self.grown()
            return make_report(self.workers, self.faults, grown, self.ended) | self.findings()

    def _pacer(self, number: int) -> Callable[[], tuple[int, float]]:
        pace = random.Random(f"{self._seed}/{number}")
        return lambda: (pace.randint(1, STEPS_PER_CELL), pace.choice((0.0, 0.01, 0.1)))

    def _answered(self, worker: Worker, sent: float) -> None:
        now = time.monotonic()
        with self.lock:
            self.cells.append((worker.name, now - sent))
            for fault in self.faults:
                over = fault.over
                if over is not None and over <= sent and worker.name in fault.affected - fault.answered.keys():
                    fault.answered[worker.name] = now - over

    @property
    def everybody(self) -> set[str]:
        """The names of all notebooks."""
        return {worker.name for worker in self.workers}

    @property
    def has_failed(self) -> bool:
        """Whether a notebook has given up."""
        return any(worker.failure for worker in self.workers)

    @property
    def _has_findings(self) -> bool:
        return any(worker.findings.is_bad for worker in self.workers)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Return once it is so, or a notebook has given up."""
        patience = PATIENCE + self.patience
        deadline = time.monotonic() + patience
        while not condition() and not self.has_failed:
            self.look_after()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {patience:g} s: {what}")
            time.sleep(0.01)

    def wait_for_answers(self) -> None:
        """Return once everybody has answered after each fault."""
        for fault in self.faults:
            self.wait_until(lambda fault=fault: fault.is_overcome, f"an answer of {fault.affected} after {fault}")

    def record(self, fault: Fault, do: Callable[[], None] = lambda: None) -> None:
        """Let it happen: *do*, unless it has happened already."""
        for worker in self.workers:
            worker.note(f"fault {len(self.faults) + 1}: {fault}, affects {', '.join(sorted(fault.affected))}")
        do()
        with self.lock:
            self.faults.append(fault)
        self.say(f"{len(self.faults)} {fault}")

    @contextlib.contextmanager
    def unhurt(self, worker: Worker) -> Any:
        """Say whether a notebook has met the last kill of something of its own, and keep it from opening another."""
        if not worker.opening.acquire(blocking=False):
            yield False
            return
        try:
            yield not worker.is_hurt and worker.notebook.manager.is_alive()
        finally:
            worker.opening.release()

    def say_logs(self) -> None:
        """Say what the services logged, and what each notebook did and heard lately."""
        for path in self.logs():
            lines = path.read_text(errors="replace").splitlines()
            self.say("\n".join([f"--- {path.name}", *(line[:_LINE] for line in lines)]))
        for worker in self.workers:
            self.say("\n".join([f"--- {worker.name}", *worker.story]))


def run_campaign(over: str, number: int, *, seed: int, **options: Any) -> dict[str, Any]:
    """Run a campaign over a backend of its own, and return its report with what was left over."""
    started = time.monotonic()
    campaign: Campaign = importlib.import_module(BACKENDS[over]).BACKEND(seed=seed, **options)
    with campaign:
        try:
            report = campaign.run(number)
        except BaseException:
            campaign.say_logs()
            raise
        if not is_clean(report | {"left": {}}):
            campaign.say_logs()
    return {"seed": seed, **report, "left": campaign.left(), "wall_seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--over", choices=BACKENDS, default="host")
    parser.add_argument("--kills", type=int, default=500, help="how many faults, of any kind")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--notebooks", type=int, default=4)
    parser.add_argument("--only", nargs="+", help="what has faults, such as `gateway`; the backend's modules name all")
    parser.add_argument("--faults", nargs="+", help="kinds of faults on one host: kills, stops, exhaustion")
    parser.add_argument("--device", help="of one host, such as cuda:0")
    parser.add_argument("--partition", type=float, help="seconds that one of the hosts is away once; 0: none is")
    options = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    over, number = options.pop("over"), options.pop("kills")
    print(f"seed {options['seed']}", file=sys.stderr, flush=True)  # noqa: T201
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731, T201
    report = run_campaign(over, number, say=say, **options)
    print(as_table(report["faults"]), file=sys.stderr, flush=True)  # noqa: T201
    print(json.dumps(report, indent=2))  # noqa: T201
    sys.exit(not is_clean(report))


if __name__ == "__main__":
    main()
