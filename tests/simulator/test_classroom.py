"""Will a card do for a class: what is assumed, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sharedkernel.simulator.classroom import ClassForecast, ClassPlan, ClassVerdict, forecast_class

_GIB = 1 << 30
#: an easy class on a large card
PLAN = ClassPlan(
    students=5, capacity=24 * _GIB, memory=_GIB // 2, context=450 << 20, seconds=1200.0, cell=0.5, pause=60.0
)


def test_a_plan_repeats_and_its_contexts_are_as_large_as_seen() -> None:
    """Each between two thirds and four thirds of the mean; sessions stay to the end."""
    plan = replace(PLAN, students=30)
    sessions = plan.sessions()
    assert sessions == plan.sessions()
    assert sessions != replace(plan, seed=1).sessions()
    assert all(300 << 20 <= session.framework <= 600 << 20 for session in sessions)
    assert all(session.persistent + session.ephemeral == plan.memory for session in sessions)
    assert not any(session.ends for session in sessions)


def test_contexts_alone_can_be_too_many() -> None:
    """Idle notebooks keep theirs, so a card that would hold everybody's tensors does not do."""
    forecast, _ = forecast_class(replace(PLAN, students=8, capacity=3 * _GIB))
    assert forecast.contexts > 3 * _GIB
    assert forecast.num_resident == 0
    assert (forecast.verdict, forecast.refused > 0) == (ClassVerdict.NO, True)
    without, _ = forecast_class(replace(PLAN, students=8, capacity=3 * _GIB, context=0))
    assert (without.verdict, without.refused) == (ClassVerdict.YES, 0)


def test_notebooks_that_do_not_fit_at_a_time_take_turns() -> None:
    """Their memory is moved away and comes back; the card does, or not, by how long that takes."""
    forecast, _ = forecast_class(replace(PLAN, students=8, memory=4 * _GIB))
    assert 0 < forecast.num_resident < 8
    assert forecast.offloads > 0
    assert forecast.refused == 0
    assert forecast.p95 > forecast_class(replace(PLAN, students=8))[0].p95


def test_much_work_is_too_much_for_any_memory() -> None:
    """The same class with longer cells waits for longer."""
    forecast, _ = forecast_class(replace(PLAN, students=20, cell=10.0))
    assert forecast.verdict is ClassVerdict.NO
    assert forecast.refused == 0


@pytest.mark.parametrize(
    ("p95", "stretch", "refused", "verdict"),
    [
        (0.0, 0.0, 0, ClassVerdict.YES),
        (5.0, 3.0, 0, ClassVerdict.YES),
        (5.1, 1.0, 0, ClassVerdict.TIGHT),
        (1.0, 3.1, 0, ClassVerdict.TIGHT),
        (15.1, 1.0, 0, ClassVerdict.NO),
        (1.0, math.inf, 0, ClassVerdict.NO),
        (0.0, 0.0, 1, ClassVerdict.NO),
    ],
)
def test_the_verdict_follows_from_the_figures(p95: float, stretch: float, refused: int, verdict: ClassVerdict) -> None:
    """People wait for short cells; long ones share the card."""
    forecast = ClassForecast(
        plan=PLAN, contexts=_GIB, num_cells=9, num_short=9, median=0.0, p95=p95, stretch=stretch, refused=refused,
        offloads=0,
    )  # fmt: skip
    assert forecast.verdict is verdict
