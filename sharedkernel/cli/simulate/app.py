"""``sharedkernel simulate``: the scheduling core under simulated time, on traces and generated workloads.

Scenarios have common ground: what to run, what to compare, how to show it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from traitlets import Bool, Float, Int, Unicode

from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.errors import ConfigError
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.scheduling.matching import AlloX
from sharedkernel.scheduling.placement import PLACEMENTS, PlacementName
from sharedkernel.scheduling.policies.registry import POLICIES
from sharedkernel.scheduling.policies.whole_jobs import JobPolicyName
from sharedkernel.simulator.cluster import ClusterOptions, simulate_cluster
from sharedkernel.simulator.device_runs import DEVICE_WORKLOADS, PATIENCE, simulate_device
from sharedkernel.simulator.heterogeneous import HeterogeneousPolicyName, simulate_heterogeneous
from sharedkernel.simulator.notebooks import SharedOptions, fewest_devices, notebooks_of, simulate_notebooks
from sharedkernel.simulator.report import SimulationResult, check_plot, figures_tables, plot
from sharedkernel.simulator.traces import CLUSTER_WORKLOADS, TIME_UNITS, TraceJob, notebooks, read_samples, read_trace
from sharedkernel.units import parse_bytes

#: called with how many jobs are done
OnProgress = Callable[[int], None]
#: bad rows of a trace that are named one by one
_MOST_NAMED = 5

#: what `--samples` says instead of a file
_FROM_TRACE = "trace"


class ScenarioApp(CommandApp):
    """Base of the scenarios. Subclasses name their policies and implement :meth:`prepare` and :meth:`simulate`."""

    #: names that `--policy` accepts
    policies: ClassVar[tuple[str, ...]] = ()

    policy = Unicode(help="The policy to run; the default depends on the scenario.")
    compare = Unicode(help="Policies to run on the same workload, separated by commas.")
    seed = Int(0, help="Start of the random numbers of generated workloads; the same seed gives the same.")
    plot = Unicode(help="Draw who ran when and how completion times are distributed to this PNG or SVG file.")
    as_json = Bool(False, help="Print the figures as JSON instead of a table.").tag(option="json")

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


def check_known(option: str, value: str, known: Iterable[str]) -> None:
    """Raise `ConfigError` if *known* has no *value*."""
    if value not in known:
        raise ConfigError(f"{option} is one of {', '.join(known)}, not {value!r}.")


class TraceScenarioApp(ScenarioApp):
    """Base of the scenarios that read a trace, or generate one."""

    trace = Unicode(help="A CSV file in Tiresias's columns; left out: a workload is generated.")
    time_unit = Unicode("s", help="Unit of the trace's times: s, ms or min.")
    skip_bad = Bool(False, help="Leave out rows that cannot be used, and say which.")
    jobs = Int(400, help="How many jobs to generate, where there is no trace.")

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


class ClusterApp(TraceScenarioApp):
    """Whole jobs on many devices."""

    name = "simulate cluster"
    description = """
        Run whole jobs on a cluster. Jobs get all their devices at once; preempting costs nothing.

        Policies: fifo (strict, or with --backfill), srtf (knows how long jobs take), las (Tiresias's discretised least
        attained service), gittins (the Gittins index of a distribution of service).

        With devices of several kinds each job gets one, and runs to its end. Policies there: allox (min-cost matching),
        srtf (shortest first, greedily), fifo.
    """
    examples = """
        sharedkernel simulate cluster --trace 60_job.csv --devices 8 --compare fifo,srtf,las
        sharedkernel simulate cluster --trace cluster_trace.csv --time-unit ms --devices 64 --policy gittins --json
        sharedkernel simulate cluster --workload heavy-tailed --jobs 1000 --devices 16 --plot heavy.png
        sharedkernel simulate cluster --workload two-kinds --devices fast=4,slow=4 --compare allox,srtf,fifo
    """
    policies = tuple(dict.fromkeys([*JobPolicyName, *HeterogeneousPolicyName]))

    devices = Unicode(
        "8",
        help="How many devices there are, or how many of each kind, such as fast=2,slow=4; a trace's column "
        "`duration_KIND` then says how long jobs take there.",
    )
    workload = Unicode(
        help=f"What to generate where there is no trace: {', '.join(CLUSTER_WORKLOADS)}; default: heavy-tailed, and "
        "two-kinds for devices of kinds fast and slow."
    )
    backfill = Bool(False, help="With fifo: later jobs that fit overtake.")
    las_thresholds = Unicode(
        help="With las: thresholds of the queues in device-seconds, such as 3250,7200,18000; empty: learned."
    )
    samples = Unicode(
        help="What las and gittins know of the workload: a CSV file with a column `duration` of earlier jobs' "
        "device-seconds, or `trace` for the trace's own jobs; empty: what finished so far in the run."
    )
    alpha = Float(1.0, help="With allox: part of the users whose jobs take part, those served least; 1: all.")

    def prepare(self) -> int:
        """See :meth:`.ScenarioApp.prepare`."""
        self._kinds = _kinds(self.devices)
        self._is_heterogeneous = "" not in self._kinds
        count = sum(self._kinds.values())
        is_file = self.samples not in ("", _FROM_TRACE)
        self._options = ClusterOptions(
            devices=count,
            backfill=self.backfill,
            las_thresholds=_numbers("--las-thresholds", self.las_thresholds) if self.las_thresholds else None,
            samples=tuple(read_samples(self.samples)) if is_file else None,
            from_trace=self.samples == _FROM_TRACE,
        )
        AlloX(alpha=self.alpha)
        able: tuple[str, ...] = tuple(HeterogeneousPolicyName if self._is_heterogeneous else JobPolicyName)
        if unable := [name for name in self.names() if name not in able]:
            devices = "devices of several kinds" if self._is_heterogeneous else "like devices"
            raise ConfigError(f"{unable[0]} is no policy for {devices}; there are {', '.join(able)}.")
        workload = self.workload or ("two-kinds" if self._is_heterogeneous else "heavy-tailed")
        check_known("--workload", workload, CLUSTER_WORKLOADS)
        self._jobs = self.workload_of(CLUSTER_WORKLOADS[workload], devices=count)
        too_large = sum(job.devices > count for job in self._jobs)
        if too_large:
            self.say(f"{too_large} of {len(self._jobs)} jobs need more than {count} devices and cannot run.")
        return len(self._jobs)

    def simulate(self, policy: str, on_progress: OnProgress) -> SimulationResult:
        """See :meth:`.ScenarioApp.simulate`."""
        if self._is_heterogeneous:
            return simulate_heterogeneous(self._jobs, policy, self._kinds, alpha=self.alpha, on_progress=on_progress)
        return simulate_cluster(self._jobs, policy, self._options, on_progress=on_progress)


def _kinds(text: str) -> dict[str, int]:
    """Return how many devices there are of each kind; of like devices the kind is empty."""
    kinds: dict[str, int] = {}
    for part in text.split(","):
        kind, _, count = part.rpartition("=")
        if not count.strip().isdecimal() or int(count) < 1 or kind.strip() in kinds or ("," in text and not kind):
            raise ConfigError(f"--devices takes a number, or kinds such as fast=2,slow=4, not {text!r}.")
        kinds[kind.strip()] = int(count)
    return kinds


class NotebooksApp(TraceScenarioApp):
    """Cells of notebooks on reserved, bound and shared devices."""

    name = "simulate notebooks"
    description = """
        Count the devices that notebooks need: reserved from a notebook's first cell to its last, bound while cells
        run, and shared with admission, lanes and offload. Sharing is simulated for the cells that want one device; jobs
        of the figures are cells.
    """
    examples = """
        sharedkernel simulate notebooks --trace sensei_june_60sec.csv --time-unit min --devices 15
        sharedkernel simulate notebooks --trace sensei_june_60sec.csv --time-unit min --wait 10   # how few will do?
        sharedkernel simulate notebooks --jobs 2000 --devices 4 --compare fair,fifo
    """
    policies = tuple(POLICIES)

    devices = Int(0, help="How many devices are shared; 0: the fewest that keep --wait.")
    wait = Float(1.0, help="Seconds within which 95 % of the cells are to begin, where --devices is 0.")
    capacity = Unicode("14GiB", help='Memory of each device, such as "14GB".')
    quantum = Float(60.0, help="Longest turn of notebooks that share a lane, seconds; shorter is slower.")
    placement = Unicode(
        PlacementName.LEAST_LOADED, help=f"How notebooks are spread over devices: {', '.join(PLACEMENTS)}."
    )

    def prepare(self) -> int:
        """See :meth:`.ScenarioApp.prepare`."""
        if not (self.wait >= 0 and self.devices >= 0):
            raise ConfigError("--wait and --devices are 0 or more.")
        self._options = {
            name: SharedOptions(
                devices=self.devices or 1,
                capacity=parse_bytes(self.capacity),
                policy=name,
                placement=self.placement,
                quantum=self.quantum,
                seed=self.seed,
            )
            for name in self.names()
        }
        jobs = self.workload_of(notebooks)
        self._notebooks = notebooks_of(jobs)
        return sum(job.devices == 1 for job in jobs)

    def simulate(self, policy: str, on_progress: OnProgress) -> SimulationResult:
        """See :meth:`.ScenarioApp.simulate`."""
        options = self._options[policy]
        if self.devices:
            return simulate_notebooks(self._notebooks, options, on_progress=on_progress)
        most = replace(options, devices=len(self._notebooks))
        return fewest_devices(self._notebooks, most, wait=self.wait, on_progress=on_progress)


class DeviceApp(ScenarioApp):
    """Iterations of many sessions on one device."""

    name = "simulate device"
    description = f"""
        Run sessions on one device, with the scheduler that serves notebooks. Workloads: {", ".join(DEVICE_WORKLOADS)};
        they are built from memory and times that Salus's authors published. A switch takes no time; sessions that run
        at once are slowed in proportion to the sum of their utilisations, where that exceeds 1.
    """
    examples = """
        sharedkernel simulate device --workload inference-42 --policy fair --capacity 14GB
        sharedkernel simulate device --workload trace-100 --compare fifo,fair --plot trace.png
        sharedkernel simulate device --workload hyperparameter-300 --policy fair --parallel-lanes 8 --json
    """
    policies = tuple(POLICIES)

    workload = Unicode("inference-42", help=f"What to run: {', '.join(DEVICE_WORKLOADS)}.")
    capacity = Unicode("14GiB", help='Memory of the device, such as "14GB".')
    quantum = Float(1.0, help="Longest turn before others may be preferred, seconds.")
    parallel_lanes = Int(1, help="Most lanes that run at once.")
    backfill = Bool(False, help="With fifo: later cells that fit overtake.")

    def prepare(self) -> int:
        """See :meth:`.ScenarioApp.prepare`."""
        check_known("--workload", self.workload, DEVICE_WORKLOADS)
        self._sessions = DEVICE_WORKLOADS[self.workload](self.seed)
        self._configs = {
            name: SchedulerConfig(
                capacity=parse_bytes(self.capacity),
                policy=name,
                quantum=self.quantum,
                preempt_patience=PATIENCE,
                parallel_lanes=self.parallel_lanes,
                backfill=self.backfill and name == "fifo",
            )
            for name in self.names()
        }
        return sum(len(session.cells) for session in self._sessions)

    def simulate(self, policy: str, on_progress: OnProgress) -> SimulationResult:
        """See :meth:`.ScenarioApp.simulate`."""
        return simulate_device(self._sessions, self._configs[policy], on_progress=on_progress)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} takes numbers separated by commas, not {text!r}.") from None


class SimulateApp(CommandApp):
    """Chooses the scenario."""

    name = "simulate"
    description = """
        Run the scheduler under simulated time, on traces or generated workloads, and print what came of it.
    """
    examples = """
        sharedkernel simulate cluster --trace 60_job.csv --devices 8 --compare fifo,srtf,las
        sharedkernel simulate device --workload trace-100 --compare fifo,fair
        sharedkernel simulate class --students 30 --device 24GiB
        sharedkernel simulate cluster --help   # the options of one scenario
    """
    subcommands: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "device": (DeviceApp, "Iterations of many sessions on one device."),
        "cluster": (ClusterApp, "Whole jobs on many devices."),
        "notebooks": (NotebooksApp, "Cells of notebooks on reserved, bound and shared devices."),
        "class": (f"{__package__}.classroom.ClassScenarioApp", "A class's notebooks on one card: will it do?"),
    }
    subcommand_description = "Run `sharedkernel simulate SCENARIO --help` for a scenario's options and an example."
    accepts_arguments = True

    def start(self) -> None:
        """Run the chosen scenario.

        Raises
        ------
        SystemExit
            With 2 when there is none of that name.
        """
        if self.subapp is not None:
            self.subapp.start()
            return
        known = ", ".join(self.subcommands)
        if self.extra_args:
            fail(f"there is no scenario {self.extra_args[0]!r}; the scenarios are {known}.", status=2)
        fail(f"which scenario? There are {known}; see `sharedkernel simulate --help`.", status=2)
