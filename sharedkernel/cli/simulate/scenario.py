"""The common ground of the scenarios of ``sharedkernel simulate``: what to run, what to compare, how to show it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from traitlets import Bool, Int, Unicode

from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.errors import ConfigError
from sharedkernel.simulator.report import SimulationResult, check_plot, figures_tables, plot
from sharedkernel.simulator.traces import TIME_UNITS, TraceJob, read_trace

#: called with how many jobs are done
OnProgress = Callable[[int], None]
#: bad rows of a trace that are named one by one
_MOST_NAMED = 5


class ScenarioApp(CommandApp):
    """Base of the scenarios. Subclasses name their policies and implement :meth:`prepare` and :meth:`simulate`."""

    #: names that `--policy` accepts
    policies: ClassVar[tuple[str, ...]] = ()

    policy = Unicode(help="The policy to run; the default depends on the scenario.").tag(config=True)
    compare = Unicode(help="Policies to run on the same workload, separated by commas.").tag(config=True)
    seed = Int(0, help="Start of the random numbers of generated workloads; the same seed gives the same.").tag(
        config=True
    )
    plot = Unicode(help="Draw who ran when and how completion times are distributed to this PNG or SVG file.").tag(
        config=True
    )
    as_json = Bool(False, help="Print the figures as JSON instead of a table.").tag(config=True, option="json")

    def prepare(self) -> int:
        """Read and check what all policies run on; return the number of jobs. Called once.

        Raises
        ------
        ConfigError
            When an option cannot be used; it is wrong use.
        """
        raise NotImplementedError

    def simulate(self, policy: str, on_progress: OnProgress) -> SimulationResult:
        """Run one policy. Called once for each policy that was asked for, after :meth:`prepare`.

        Parameters
        ----------
        policy
            Its name.
        on_progress
            Called with the number of jobs that are done, whenever one is.
        """
        raise NotImplementedError

    def start(self) -> None:
        """Run the policies asked for and print what they came to.

        Raises
        ------
        SystemExit
            With 2 for wrong use.
        """
        names = self.names()
        try:
            if self.plot:
                check_plot(Path(self.plot))
            total = self.prepare()
        except ConfigError as error:
            fail(f"{str(error).rstrip('.')}; see `{self._command_line} --help`.", status=2)
        outcomes = self._run(names, total)
        if self.as_json:
            figures = [outcome.figures() for outcome in outcomes]
            print(json.dumps(figures if self.compare else figures[0]))  # noqa: T201
        else:
            Console(highlight=False).print(self.render(outcomes))
        if self.plot:
            plot(outcomes, Path(self.plot))

    def render(self, outcomes: Sequence[SimulationResult]) -> RenderableType:
        """Return what people see of the outcomes, one for each policy."""
        return Group(*figures_tables(outcomes, Console().width))

    def names(self) -> Sequence[str]:
        """Return the policies asked for.

        Raises
        ------
        SystemExit
            With 2 when there is none of a name.
        """
        if self.policy and self.compare:
            fail("give either --policy or --compare, not both.", status=2)
        names = [name.strip() for name in (self.compare or self.policy or self.policies[0]).split(",")]
        for name in names:
            if name not in self.policies:
                fail(f"there is no policy {name!r} here; there are {', '.join(self.policies)}.", status=2)
        return names

    def say(self, sentence: str) -> None:
        """Tell people something on standard error, which the figures do not need."""
        Console(stderr=True, highlight=False, soft_wrap=True).print(sentence, markup=False)

    def _run(self, names: Sequence[str], total: int) -> list[SimulationResult]:
        # Standard output belongs to the figures alone; the bar is for people who wait at a terminal.
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        outcomes = []
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            for name in names:
                task = progress.add_task(name, total=total)

                def show(done: int, task: TaskID = task) -> None:
                    progress.update(task, completed=done)

                outcomes.append(self.simulate(name, show))
        return outcomes


def check_known(option: str, value: str, known: Iterable[str]) -> None:
    """Raise `ConfigError` if *known* has no *value*."""
    if value not in known:
        raise ConfigError(f"{option} is one of {', '.join(known)}, not {value!r}.")


class TraceScenarioApp(ScenarioApp):
    """Base of the scenarios that read a trace, or generate one."""

    trace = Unicode(help="A CSV file in Tiresias's columns; left out: a workload is generated.").tag(config=True)
    time_unit = Unicode("s", help="Unit of the trace's times: s, ms or min.").tag(config=True)
    skip_bad = Bool(False, help="Leave out rows that cannot be used, and say which.").tag(config=True)
    jobs = Int(400, help="How many jobs to generate, where there is no trace.").tag(config=True)

    def workload_of(self, generate: Callable[..., tuple[TraceJob, ...]], **options: Any) -> tuple[TraceJob, ...]:
        """Return the trace's jobs, and say on standard error what was left out of it; or generate some.

        Raises
        ------
        ConfigError
            When an option cannot be used.
        TraceError
            When the trace cannot be read.
        """
        check_known("--time-unit", self.time_unit, TIME_UNITS)
        if self.jobs < 1:
            raise ConfigError(f"--jobs is a number of jobs, at least 1, not {self.jobs}.")
        if not self.trace:
            return generate(jobs=self.jobs, seed=self.seed, **options)
        trace = read_trace(self.trace, time_unit=self.time_unit, skip_bad=self.skip_bad)
        for sentence in trace.skipped[:_MOST_NAMED]:
            self.say(f"left out: {sentence}")
        if len(trace.skipped) > _MOST_NAMED:
            self.say(f"left out: {len(trace.skipped) - _MOST_NAMED} more rows.")
        return trace.jobs
