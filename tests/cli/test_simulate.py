"""``sharedkernel simulate``: traces in, figures out."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.command import run_apart, run_here

TRACE = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,10,vgg19,10,0
1,2,0,10,vgg19,10,0
2,1,1,10,vgg19,2,0
"""
FIGURES = [
    "policy",
    "jobs",
    "finished",
    "avg_jct_seconds",
    "p50_jct_seconds",
    "p95_jct_seconds",
    "max_jct_seconds",
    "makespan_seconds",
    "avg_wait_seconds",
    "preemptions",
    "utilization",
    "jain_index",
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def simulate(*arguments: object) -> tuple[str, str]:
    """Run a scenario and return what it printed."""
    done = run_here("simulate", *map(str, arguments))
    assert done.returncode == 0, done
    return done.stdout, done.stderr


def figures(*arguments: object) -> Any:
    """Return the figures of a scenario."""
    return json.loads(simulate(*arguments, "--json")[0])


def test_the_command_is_one_of_all(trace: Path) -> None:
    """From the shell: one policy is one document with the fixed names in their order."""
    done = run_apart("simulate", "cluster", "--trace", str(trace), "--devices", "2", "--policy", "srtf", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert list(document) == FIGURES
    assert (document["finished"], document["makespan_seconds"]) == (3, 20.0)
    assert done.stderr == ""


def test_options_of_the_cluster_do_what_they_say(trace: Path) -> None:
    """Backfill overtakes, thresholds demote, and the unit of time scales."""
    run = partial(figures, "cluster", "--trace", trace, "--devices", 2)
    assert run("--policy", "fifo")["avg_jct_seconds"] > run("--policy", "fifo", "--backfill")["avg_jct_seconds"]
    assert run("--policy", "las", "--las-thresholds", "4,8")["preemptions"] > 0
    assert run("--policy", "las", "--las-thresholds", "4000")["preemptions"] == 0
    assert run("--policy", "fifo", "--time-unit", "min")["makespan_seconds"] == 22 * 60
    assert run("--policy", "gittins", "--samples", "trace")["finished"] == 3


def test_a_table_and_a_picture_are_for_people(trace: Path, tmp_path: Path) -> None:
    """Without --json the figures come as a table with a column for each policy."""
    out, _ = simulate("cluster", "--trace", trace, "--compare", "fifo,srtf", "--plot", tmp_path / "runs.svg")
    assert (tmp_path / "runs.svg").stat().st_size > 1000
    assert re.search(r"mean completion time +\S+ s +\S+ s", out)
    assert out.index("fifo") < out.index("srtf")


def test_a_table_of_all_policies_fits_80_columns() -> None:
    """In several tables, where one has no room for them; nothing is cut."""
    names = "fifo,srtf,las,gittins"
    done = run_apart("simulate", "cluster", "--jobs", "60", "--compare", names, COLUMNS="60")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "…" not in done.stdout
    assert done.stdout.count("mean completion time") > 1
    assert re.findall("|".join(names.split(",")), done.stdout) == names.split(",")


def test_the_other_scenarios_run() -> None:
    """Generated workloads need no file; each scenario adds its own figures."""
    assert figures("device", "--policy", "fair", "--capacity", "14GB")["devices_needed"] == 1
    added = figures("notebooks", "--jobs", 200, "--devices", 2, "--seed", 3)
    assert {"devices_mean", "devices_p95", "reserved_devices_mean", "notebooks_per_device"} <= added.keys()
    assert figures("cluster", "--devices", "fast=2,slow=2", "--jobs", 60, "--policy", "allox")["users"] > 1


def test_only_matching_needs_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it all else runs, and one sentence says what is missing."""
    for name in ("scipy", "scipy.optimize"):
        monkeypatch.setitem(sys.modules, name, None)
    cluster = ("simulate", "cluster", "--devices", "fast=2,slow=2", "--jobs", "60", "--policy")
    assert run_here(*cluster, "srtf").returncode == 0
    done = run_here(*cluster, "allox")
    assert (done.returncode, "allox needs scipy; install it with `pip install scipy`." in done.stderr) == (1, True)


def test_bad_rows_are_an_error_or_left_out(trace: Path) -> None:
    """The sentence names file, line and column; --skip-bad goes on and says so."""
    trace.write_text(TRACE + "3,1,5,0,m,never,0\n")
    done = run_here("simulate", "cluster", "--trace", str(trace))
    assert done.returncode == 1
    assert done.stderr == f"sharedkernel: {trace}, line 5, column duration: 'never' is no number.\n"
    out, err = simulate("cluster", "--trace", trace, "--skip-bad", "--json")
    assert json.loads(out)["jobs"] == 3
    assert err == f"left out: {trace}, line 5, column duration: 'never' is no number.\n"


def test_jobs_too_large_are_told(trace: Path) -> None:
    """They cannot run, and the figures do not hide it."""
    out, err = simulate("cluster", "--trace", trace, "--devices", 1, "--json")
    assert json.loads(out)["finished"] == 2
    assert err == "1 of 3 jobs need more than 1 devices and cannot run.\n"


# --- of classes: the answer in words, and figures --------------------------------------------------------------

SMALL = ("class", "--students", 4, "--hours", "10m")


def test_the_answer_is_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 80 columns, contexts of idle notebooks counted."""
    monkeypatch.setenv("COLUMNS", "80")
    output, errors = simulate(*SMALL, "--device", "24GiB")
    assert errors == ""
    assert output.startswith("Yes: 24.0 GiB will do for 4 students. The contexts of 4 students take 1.")
    assert max(map(len, output.splitlines())) <= 80


def test_too_small_a_card_is_said_with_what_helps() -> None:
    """Contexts alone fill it."""
    output, _ = simulate("class", "--students", 12, "--hours", "5m", "--device", "4GiB")
    text = " ".join(output.split())
    assert text.startswith("No: 4.0 GiB will not do for 12 students.")
    assert "That leaves no room for a notebook's 512 MiB. About 7 notebooks fit" in text


def test_figures_and_a_plot_are_as_of_other_scenarios(tmp_path: Path) -> None:
    """Programs read the JSON; several policies are compared on the same class."""
    picture = tmp_path / "class.svg"
    fair, fifo = figures(*SMALL, "--compare", "fair,fifo", "--plot", picture)
    assert [fair["policy"], fifo["policy"]] == ["fair", "fifo"]
    assert fair["students"] == fifo["students"] == 4
    assert fair["verdict"] == "yes"
    assert fair["context_bytes"] == fifo["context_bytes"] > 4 * (300 << 20)
    assert picture.read_text().startswith("<?xml")
