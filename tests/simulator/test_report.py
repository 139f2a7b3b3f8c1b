"""Pictures of a simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.simulator.cluster import ClusterOptions, simulate_cluster
from sharedkernel.simulator.report import check_plot, draw, plot, time_unit
from sharedkernel.simulator.traces import alike, heavy_tailed

pytest.importorskip("matplotlib")


def test_all_policies_have_one_axis_of_time() -> None:
    """A policy that is done early leaves room, so that lengths can be compared; the unit suits the longest."""
    jobs = heavy_tailed(jobs=200, devices=4, seed=0)
    few, many = (simulate_cluster(jobs, "fifo", ClusterOptions(devices=devices)) for devices in (4, 40))
    assert few.ended > many.ended
    first, second, distribution = draw([many, few]).axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()
    unit, length = time_unit(few.ended - few.began)
    assert second.get_xlim()[1] == pytest.approx(few.ended / length)
    assert (first.get_xlabel(), second.get_xlabel()) == ("", f"time, {unit}")
    assert distribution.get_xlabel().startswith("completion time, ")


def test_a_picture_of_nothing_finished_is_drawn(tmp_path: Path) -> None:
    """A run in which no job could start still has its panel."""
    outcome = simulate_cluster(alike(jobs=3, devices=1, seed=0), "srtf", ClusterOptions(devices=1))
    nothing = simulate_cluster(
        [job for job in heavy_tailed(jobs=50, devices=8, seed=0) if job.devices == 8],
        "srtf",
        ClusterOptions(devices=1),
    )
    plot([outcome, nothing], tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").stat().st_size > 1000


def test_what_cannot_be_drawn_is_said_beforehand(tmp_path: Path) -> None:
    """The ending must be of a known kind of picture, and the folder must be there."""
    with pytest.raises(ConfigError, match="let it end in"):
        check_plot(tmp_path / "picture.txt")
    outcome = simulate_cluster(alike(jobs=3, devices=1, seed=0), "srtf", ClusterOptions(devices=1))
    with pytest.raises(ConfigError, match="cannot be written"):
        plot([outcome], tmp_path / "none" / "picture.png")
