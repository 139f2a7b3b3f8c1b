"""``sharedkernel simulate``: traces in, figures out."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from sharedkernel.cli.simulate.app import SimulateApp
from sharedkernel.errors import ConfigError
from tests.cli.test_main import sharedkernel

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


def simulate(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    """Run a scenario in this process and return what it printed."""
    application = SimulateApp()
    try:
        application.initialize([str(argument) for argument in arguments])
        application.start()
    finally:
        type(application.subapp or application).clear_instance()
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_command_is_one_of_all(trace: Path) -> None:
    """From the shell: one policy is one document with the fixed names in their order."""
    done = sharedkernel("simulate", "cluster", "--trace", str(trace), "--devices", "2", "--policy", "srtf", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert list(document) == FIGURES
    assert (document["finished"], document["makespan_seconds"]) == (3, 20.0)
    assert done.stderr == ""


def test_options_of_the_cluster_do_what_they_say(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Backfill overtakes, thresholds demote, and the unit of time scales."""

    def run(*options: object) -> dict[str, float]:
        out, _ = simulate(capsys, "cluster", "--trace", trace, "--devices", 2, *options, "--json")
        document: dict[str, float] = json.loads(out)
        return document

    assert run("--policy", "fifo")["avg_jct_seconds"] > run("--policy", "fifo", "--backfill")["avg_jct_seconds"]
    assert run("--policy", "las", "--las-thresholds", "4,8")["preemptions"] > 0
    assert run("--policy", "las", "--las-thresholds", "4000")["preemptions"] == 0
    assert run("--policy", "fifo", "--time-unit", "min")["makespan_seconds"] == 22 * 60
    learned = run("--policy", "gittins", "--samples", "trace")
    assert learned["finished"] == 3


def test_a_table_and_a_picture_are_for_people(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the figures come as a table with a column for each policy."""
    out, _ = simulate(capsys, "cluster", "--trace", trace, "--compare", "fifo,srtf", "--plot", tmp_path / "runs.svg")
    assert (tmp_path / "runs.svg").stat().st_size > 1000
    assert re.search(r"mean completion time +\S+ s +\S+ s", out)
    assert out.index("fifo") < out.index("srtf")


def test_a_table_of_all_policies_fits_80_columns() -> None:
    """In several tables, where one has no room for them; nothing is cut."""
    names = "fifo,srtf,las,gittins"
    environment = os.environ | {"COLUMNS": "60"}
    done = sharedkernel("simulate", "cluster", "--jobs", "60", "--compare", names, env=environment)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "…" not in done.stdout
    assert done.stdout.count("mean completion time") > 1
    assert re.findall("|".join(names.split(",")), done.stdout) == names.split(",")


def test_the_other_scenarios_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Generated workloads need no file; each scenario adds its own figures."""
    out, _ = simulate(capsys, "device", "--policy", "fair", "--capacity", "14GB", "--json")
    assert json.loads(out)["devices_needed"] == 1
    out, _ = simulate(capsys, "notebooks", "--jobs", 200, "--devices", 2, "--json", "--seed", 3)
    added = json.loads(out)
    assert {"devices_mean", "devices_p95", "reserved_devices_mean", "notebooks_per_device"} <= added.keys()
    out, _ = simulate(capsys, "cluster", "--devices", "fast=2,slow=2", "--jobs", 60, "--policy", "allox", "--json")
    assert json.loads(out)["users"] > 1


def test_only_matching_needs_scipy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it all else runs, and one sentence says what is missing."""
    for name in ("scipy", "scipy.optimize"):
        monkeypatch.setitem(sys.modules, name, None)
    cluster = ("cluster", "--devices", "fast=2,slow=2", "--jobs", 60, "--json")
    simulate(capsys, *cluster, "--policy", "srtf")
    with pytest.raises(ConfigError, match=r"the policy allox needs scipy; install it with `pip install scipy`\."):
        simulate(capsys, *cluster, "--policy", "allox")


def test_bad_rows_are_an_error_or_left_out(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names file, line and column; --skip-bad goes on and says so."""
    trace.write_text(TRACE + "3,1,5,0,m,never,0\n")
    done = sharedkernel("simulate", "cluster", "--trace", str(trace))
    assert done.returncode == 1
    assert done.stderr == f"sharedkernel: {trace}, line 5, column duration: 'never' is no number.\n"
    out, err = simulate(capsys, "cluster", "--trace", trace, "--skip-bad", "--json")
    assert json.loads(out)["jobs"] == 3
    assert err == f"left out: {trace}, line 5, column duration: 'never' is no number.\n"


def test_jobs_too_large_are_told(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They cannot run, and the figures do not hide it."""
    out, err = simulate(capsys, "cluster", "--trace", trace, "--devices", 1, "--json")
    assert json.loads(out)["finished"] == 2
    assert err == "1 of 3 jobs need more than 1 devices and cannot run.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "which scenario? There are device, cluster, notebooks"),
        (["cluster", "--policy", "dice"], "there is no policy 'dice' here; there are fifo, srtf, las, gittins, allox"),
        (["cluster", "--policy", "fifo", "--compare", "fifo"], "either --policy or --compare"),
        (["cluster", "--policy", "allox"], "allox is no policy for like devices"),
        (["cluster", "--devices", "many"], "--devices takes a number, or kinds such as"),
        (["cluster", "--las-thresholds", "1,x"], "--las-thresholds takes numbers separated by commas"),
        (["cluster", "--plot", "x.txt"], "x.txt is no name for a picture"),
        (["device", "--workload", "x"], "--workload is one of inference-42"),
        (["notebooks", "--placement", "x"], "there is no placement 'x'"),
        (["notebooks", "--jobs", "0"], "--jobs is a number of jobs"),
    ],
)
def test_wrong_use_is_one_sentence_and_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be understood ends with one line and exit code 2, before anything is simulated."""
    with pytest.raises(SystemExit) as caught:
        simulate(capsys, *arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
