"""The steps of the self-test, their results, and which mode of device memory follows from these."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sharedkernel.device_memory.mode import DeviceMemoryMode

#: seconds that one step may take: most of one is the making of contexts
STEP_SECONDS = 20.0
#: seconds that torch and the libraries beneath it may take to load, which is long from a cold disk
LOAD_SECONDS = 180.0
#: seconds that all steps may take once they are loaded
TOTAL_SECONDS = 60.0
#: modes from the plainest up
_UPWARDS = (DeviceMemoryMode.PLAIN, DeviceMemoryMode.PRIVATE, DeviceMemoryMode.SHARED)


@dataclass(frozen=True, slots=True)
class SelfTestStep:
    """One thing that is tried."""

    name: str
    #: the plainest mode that needs it
    mode: DeviceMemoryMode
    #: what works if it passes
    about: str


STEPS = (
    SelfTestStep("training", DeviceMemoryMode.PLAIN, "a model trains as on the processor"),
    SelfTestStep("memory-limit", DeviceMemoryMode.PLAIN, "a limit holds, and memory comes back"),
    SelfTestStep("two-processes", DeviceMemoryMode.PLAIN, "two processes compute by turns"),
    SelfTestStep("peaks", DeviceMemoryMode.PRIVATE, "peaks of memory are measured"),
    SelfTestStep("tensors-moved", DeviceMemoryMode.PRIVATE, "tensors move to the host and back"),
    SelfTestStep("shared-memory", DeviceMemoryMode.SHARED, "two processes see the same memory"),
    SelfTestStep("shared-lane", DeviceMemoryMode.SHARED, "two sessions train in one lane"),
    SelfTestStep("survivors", DeviceMemoryMode.SHARED, "what outlives an iteration stays whole and unseen"),
    SelfTestStep("hand-over", DeviceMemoryMode.SHARED, "an iteration is interrupted and goes on"),
    SelfTestStep("offload", DeviceMemoryMode.SHARED, "pages move to the host and back to their addresses"),
    SelfTestStep("side-stream", DeviceMemoryMode.SHARED, "memory in use by another stream is kept"),
    SelfTestStep("pools-dropped", DeviceMemoryMode.SHARED, "memory pools are destroyed in use"),
    SelfTestStep("killed-holder", DeviceMemoryMode.SHARED, "a lane outlives its holder"),
)


class Outcome(StrEnum):
    """The outcome of a step."""

    PASSED = "passed"
    FAILED = "failed"
    #: it passed before, and is trusted
    TRUSTED = "trusted"
    #: the self-test ended before it had a result, or what it is about cannot be had here in any case
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step."""

    step: str
    outcome: Outcome
    seconds: float = 0.0
    #: why it failed or did not run; without a full stop
    why: str = ""

    @classmethod
    def not_run(cls, step: str, why: str) -> StepResult:
        """Return the result of a step that did not run, and why."""
        return cls(step=step, outcome=Outcome.NOT_RUN, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the self-test."""

    results: tuple[StepResult, ...]
    #: the mode to use
    mode: DeviceMemoryMode
    #: the best mode that the driver and torch offer
    best: DeviceMemoryMode
    #: one sentence each about files of earlier results that could not be used
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[StepResult, ...]:
        """The steps that failed."""
        return tuple(result for result in self.results if result.outcome is Outcome.FAILED)

    @property
    def left_out(self) -> tuple[StepResult, ...]:
        """The steps that should have run, and did not."""
        wanted = {step.name for step in steps_up_to(self.best)}
        return tuple(each for each in self.results if each.outcome is Outcome.NOT_RUN and each.step in wanted)

    @property
    def is_whole(self) -> bool:
        """Whether every step passed that the best mode needs."""
        return not self.failed and not self.left_out

    @property
    def sentence(self) -> str:
        """One sentence for the log and for status: what did not pass, and what is switched off for that."""
        if not self.is_whole:
            what = f"the self-test failed at {_first_of(self.failed)}" if self.failed else "the self-test"
            if self.left_out:
                what += f"{' and' if self.failed else ''} did not run {_first_of(self.left_out)}"
            return f"{what}; in this run {self.mode.meaning or 'nothing is switched off'}."
        passed = [result for result in self.results if result.outcome is Outcome.PASSED]
        trusted = sum(result.outcome is Outcome.TRUSTED for result in self.results)
        seconds = sum(result.seconds for result in passed)
        return f"the self-test found nothing wrong; steps tried: {len(passed)} in {seconds:.1f} s, trusted: {trusted}."


def _first_of(results: Sequence[StepResult]) -> str:
    more = f", and {len(results) - 1} more" if len(results) > 1 else ""
    return f"{results[0].step} ({results[0].why}){more}"


def steps_up_to(best: DeviceMemoryMode) -> tuple[SelfTestStep, ...]:
    """Return the steps that *best* and all plainer modes need."""
    modes = _UPWARDS[: _UPWARDS.index(best) + 1]
    return tuple(step for step in STEPS if step.mode in modes)


def judge(
    results: Iterable[StepResult], best: DeviceMemoryMode, *, why_not_better: str = "", notes: Sequence[str] = ()
) -> Verdict:
    """Return what follows from the results of steps.

    Parameters
    ----------
    results
        Of all steps that *best* needs, in any order; one that is missing did not run.
    best
        The best mode that the driver and torch offer.
    why_not_better
        Why no better mode was tried; without a full stop.
    notes
        Of the verdict.
    """
    by_name = {result.step: result for result in results}
    tried = steps_up_to(best)
    ordered = tuple(
        by_name.get(step.name, StepResult.not_run(step.name, "it has no result"))
        if step in tried
        else StepResult.not_run(step.name, why_not_better)
        for step in STEPS
    )
    good = {result.step for result in ordered if result.outcome in (Outcome.PASSED, Outcome.TRUSTED)}
    untrusted = {step.mode for step in STEPS if step.name not in good}
    trusted = itertools.takewhile(lambda mode: mode not in untrusted, _UPWARDS)
    return Verdict(results=ordered, mode=[DeviceMemoryMode.PLAIN, *trusted][-1], best=best, notes=tuple(notes))


def table(verdict: Verdict) -> str:
    """Return the verdict as a table for people, its last line the mode that follows."""
    header = ("Step", "What works", "Needed for", "Result", "Seconds")
    rows = [
        (step.name, step.about, str(step.mode), str(result.outcome), f"{result.seconds:.1f}" if result.seconds else "")
        for step, result in zip(STEPS, verdict.results, strict=True)
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for row in (header, *rows):
        *texts, seconds = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([*texts, seconds.strip().rjust(widths[-1])]).rstrip())
    for result in verdict.results:
        if result.outcome is Outcome.FAILED:
            lines.append(f"{result.step} failed: {result.why}.")
    reasons = {result.why for result in verdict.results if result.outcome is Outcome.NOT_RUN and result.why}
    lines += [f"Not run: {reason}." for reason in sorted(reasons)]
    lines.append(f"Mode: {verdict.mode}{'; ' + verdict.mode.meaning if verdict.mode.meaning else ''}.")
    return "\n".join(lines)
