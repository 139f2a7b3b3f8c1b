"""Jobs matched to heterogeneous devices: the least mean completion time there is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling.matching import AlloX, MatchedDevice, MatchedJob, match, shortest_by_kind


def job(name: str, x: float, y: float, **more: object) -> MatchedJob:
    return MatchedJob(id=name, seconds={"x": x, "y": y}, **more)  # type: ignore[arg-type]


def device(name: str, available: float = 0.0) -> MatchedDevice:
    return MatchedDevice(id=name, kind=name[0], available=available)


def completions(plan: dict[str, list[MatchedJob]], devices: list[MatchedDevice]) -> list[float]:
    """Return when each job is done."""
    done = []
    for each in devices:
        now = each.available
        for planned in plan[each.id]:
            now += planned.seconds[each.kind]
            done.append(now)
    return done


FOUR = [job("1", 10, 20), job("2", 15, 25), job("3", 20, 100), job("4", 20, 90)]
DEVICES = [device("x0"), device("x1"), device("y0"), device("y1")]


def test_the_worked_example() -> None:
    """AlloX's four jobs: mean 21.25 instead of greed's 53.75, all done after 25 instead of 100."""
    matched = completions(match(FOUR, DEVICES), DEVICES)
    assert (sum(matched) / 4, max(matched)) == (21.25, 25)


times = st.tuples(st.integers(1, 100), st.integers(1, 100))


@given(described=st.lists(times, min_size=1, max_size=4))
def test_the_best_of_all_schedules(described: list[tuple[int, int]]) -> None:
    """On two devices nothing that can be tried by hand is better."""
    jobs = [job(str(number), x, y) for number, (x, y) in enumerate(described)]
    devices = [device("x0"), device("y0")]
    best = min(
        sum(completions({"x0": list(order[:cut]), "y0": list(order[cut:])}, devices))
        for order in itertools.permutations(jobs)
        for cut in range(len(jobs) + 1)
    )
    assert sum(completions(match(jobs, devices), devices)) <= best * (1 + 1e-5)


def test_a_slow_device_is_left_idle_where_waiting_is_quicker() -> None:
    """Nothing is started on a device that would take longer than waiting for the other."""
    started = AlloX().start([job("1", 1, 100)], [device("x0", 5.0), device("y0")], attained={}, now=0.0)
    assert started == {}


def test_alpha_lets_those_served_least_go_first() -> None:
    """With half of the users, the one who attained less starts, though the other's job is shorter."""
    jobs = [job("short", 1, 1, user="ada"), job("long", 9, 9, user="bob")]
    attained = {"ada": 50.0, "bob": 1.0}
    one = [device("x0")]
    assert AlloX(alpha=1.0).start(jobs, one, attained=attained, now=0.0)["x0"].id == "short"
    assert AlloX(alpha=0.5).start(jobs, one, attained=attained, now=0.0)["x0"].id == "long"


def test_alpha_never_leaves_a_device_idle_that_somebody_could_use() -> None:
    """Where those served least start nothing, the others' jobs do."""
    jobs = [job("rather x", 1, 1000, user="ada"), job("any", 5, 5, user="bob")]
    started = AlloX(alpha=0.5).start(jobs, [device("x0", 100.0), device("y0")], attained={}, now=0.0)
    assert started["y0"].id == "any"


def test_only_so_many_jobs_take_part() -> None:
    """By turns the shortest on each kind of device."""
    jobs = [job("a", 1, 90), job("b", 2, 80), job("c", 90, 1), job("d", 80, 2)]
    assert [each.id for each in shortest_by_kind(jobs, 3)] == ["a", "c", "b"]
    assert shortest_by_kind(jobs, 4) == jobs


def test_an_alpha_of_nobody_is_refused() -> None:
    """With one sentence."""
    with pytest.raises(ConfigError, match="above 0 and up to 1"):
        AlloX(alpha=0.0)
