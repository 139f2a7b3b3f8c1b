"""``sharedkernel simulate class``: whether a card will do for a class, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text
from traitlets import Int, Unicode

from sharedkernel.cli.simulate.app import OnProgress, ScenarioApp
from sharedkernel.errors import ConfigError
from sharedkernel.scheduling.policies.registry import POLICIES
from sharedkernel.simulator.classroom import SHORT, ClassForecast, ClassPlan, ClassVerdict, forecast_class
from sharedkernel.simulator.report import SimulationResult
from sharedkernel.units import format_bytes, format_seconds, parse_bytes, parse_duration

#: most students, and the longest class in seconds: what is simulated in minutes
_MOST_STUDENTS, _MOST_SECONDS = 500, 8 * 3600.0
_OPENINGS = {
    ClassVerdict.YES: "Yes: {device} will do for {students}.",
    ClassVerdict.TIGHT: "It is tight: {device} will do for {students}, with waits.",
    ClassVerdict.NO: "No: {device} will not do for {students}.",
}


class ClassScenarioApp(ScenarioApp):
    """A class's notebooks on one card."""

    name = "simulate class"
    description = """
        Will my card do? Run a class's notebooks on one card, with the scheduler that serves them.

        Every notebook holds a CUDA context as long as it is open, 300 to 600 MB on most cards, which stays on the card
        while it is idle; its other memory is moved away when others need the room. What students do is assumed: cells
        of half a second, one in ten ten times as long, and a minute between two. Say what yours do.
    """
    examples = """
        sharedkernel simulate class --students 30 --device 24GiB
        sharedkernel simulate class --students 30 --device 24GiB --memory 2GiB --cell 5s --plot class.png
    """
    policies = tuple(POLICIES)

    students = Int(30, help="How many students work at the same time.")
    device = Unicode("24GiB", help='Memory of the card, such as "24GiB".')
    memory = Unicode("512MiB", help="What each notebook needs while a cell runs, without its context.")
    context = Unicode("450MiB", help="What a context takes in the mean.")
    hours = Unicode("1h", help='How long the class takes, such as "90m".')
    cell = Unicode("500ms", help="What half of the cells take at most, alone on the card.")
    pause = Unicode("60s", help="How long half of the pauses between two cells are at most.")

    def prepare(self) -> int:
        """See :meth:`.ScenarioApp.prepare`."""
        seconds, cell, pause = (parse_duration(text) for text in (self.hours, self.cell, self.pause))
        if not 1 <= self.students <= _MOST_STUDENTS:
            raise ConfigError(f"--students is 1 to {_MOST_STUDENTS}.")
        if not (60 <= seconds <= _MOST_SECONDS and cell >= 0.001 and pause >= 1):
            raise ConfigError("--hours is 1 minute to 8 hours, --cell at least 1 ms, --pause at least 1 second.")
        self._plans = {
            name: ClassPlan(
                students=self.students,
                capacity=_positive("--device", self.device),
                memory=_positive("--memory", self.memory),
                context=parse_bytes(self.context),
                seconds=seconds,
                cell=cell,
                pause=pause,
                seed=self.seed,
                policy=name,
            )
            for name in self.names()
        }
        self._forecasts: list[ClassForecast] = []
        return sum(len(session.cells) for session in self._plans[self.names()[0]].sessions())

    def simulate(self, policy: str, on_progress: OnProgress) -> SimulationResult:
        """See :meth:`.ScenarioApp.simulate`."""
        forecast, outcome = forecast_class(self._plans[policy], on_progress=on_progress)
        self._forecasts.append(forecast)
        return outcome

    def render(self, outcomes: Sequence[SimulationResult]) -> RenderableType:
        """Return an answer in words for each policy."""
        titles = [f"{forecast.plan.policy}: " if len(outcomes) > 1 else "" for forecast in self._forecasts]
        return Text("\n".join(title + answer(each) for title, each in zip(titles, self._forecasts, strict=True)))


def _positive(option: str, text: str) -> int:
    size = parse_bytes(text)
    if size <= 0:
        raise ConfigError(f"{option} is an amount of memory above 0.")
    return size


def answer(forecast: ClassForecast) -> str:
    """Return whether the card will do, why, and what helps if it does not."""
    plan = forecast.plan
    students = f"{plan.students} student{'' if plan.students == 1 else 's'}"
    sentences = [
        _OPENINGS[forecast.verdict].format(device=format_bytes(plan.capacity), students=students),
        f"The contexts of {students} take {format_bytes(forecast.contexts)}, even while their notebooks are idle.",
    ]
    if forecast.num_resident == 0:
        most = max(0, plan.capacity - plan.memory) // max(1, forecast.contexts // plan.students)
        sentences.append(
            f"That leaves no room for a notebook's {format_bytes(plan.memory)}. About {most} notebooks fit; have fewer "
            "open at a time (--sessions 1, a short --cull-after), or use a second card."
        )
        return " ".join(sentences)
    all_fit = forecast.num_resident >= plan.students
    number = "all" if all_fit else forecast.num_resident
    away = f" at a time; the others' are moved away meanwhile, {forecast.offloads} times in the class"
    fit = f"Beside them {number} notebooks' tensors ({format_bytes(plan.persistent)} each) and a running cell fit"
    sentences.append(f"{fit}{'' if all_fit else away}.")
    if forecast.refused:
        sentences.append(f"{forecast.refused} of {forecast.num_cells} cells found no memory.")
    if forecast.num_short:
        sentences.append(
            f"Half of the short cells end within {_later(forecast.median)} of the time that they take alone, 95 in 100 "
            f"within {_later(forecast.p95)}."
        )
    if forecast.stretch:
        many = f"{forecast.stretch:.1f} times" if math.isfinite(forecast.stretch) else "many times"
        sentences.append(f"Of the cells that train for {SHORT:g} s or longer, 95 in 100 take up to {many} that long.")
    if forecast.verdict is not ClassVerdict.YES:
        sentences.append("A smaller class or notebooks, shorter cells or a second card help.")
    return " ".join(sentences)


def _later(seconds: float) -> str:
    return format_seconds(max(seconds, 0.001)) if math.isfinite(seconds) else "more than half an hour"
