"""Lines that no command understands, and what is said of them; `test_trace.py` and `test_install.py` have others."""

from __future__ import annotations

import shlex

import pytest

from sharedkernel.cli.bench import BENCHMARKS
from tests.command import run_here

_CLASS = "use `class ROSTER --until TIME`, `class status`, `class invite NAME...`, `class until TIME` or `class end`."


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("frobnicate", "there is no command 'frobnicate'; the commands are demo, lab"),
        ("--frobnicate=1", "there is no option --frobnicate"),
        ("lab --no-browser", "goes behind `--`, as in `sharedkernel lab -- --no-browser`."),
        ("lab --capacity 1GiB --port 90 -- x", "as in `sharedkernel lab -- --port 90`."),
        ("status --gatway-url x", "unrecognized arguments: --gatway-url; see `sharedkernel status --help`"),
        ("status --token", ": expected one argument; see `sharedkernel status --help`"),
        ("gateway --port 99999", "should not be greater than 65535"),
        ("executor --capacity 8", "a capacity of 8 B is too little for any notebook"),
        ("status extra", "'extra' is not understood; see `sharedkernel status --help`"),
        ("demo --capacity 8-Gb", "'8-Gb' is not an amount of memory"),
        ("bench", f"which benchmark? There are {', '.join(BENCHMARKS)}; or run them --all."),
        ("bench strat", f"there is no benchmark 'strat'; there are {', '.join(BENCHMARKS)}."),
        ("bench start --repeats -1", "repeats must be at least 0, not -1"),
        ("class", _CLASS),
        ("class roster.csv other.csv", _CLASS),
        ("class stauts", "there is no file stauts; did you mean `sharedkernel class status`?"),
        ("class status --memory 1GiB", "limits and --until go with a roster; see `sharedkernel class --help`."),
        ("class end --group ''", "--group has no value; see `sharedkernel class --help`."),
        ("quota ada bob", "'bob' is not understood; name one user."),
        ("quota --memory 8GiB", "whose limits? Name a user, --group NAME or --default."),
        ("quota ada --default --share 2", "a user, --group and --default do not go together; say which."),
        ("quota ada --memory ''", "--memory has no value; see `sharedkernel quota --help`."),
        ("quota ada --reset --share 2", "--reset goes with a user, with --group or alone."),
        ("quota --group '' --reset", "--group has no value; see `sharedkernel quota --help`."),
        ("quota '' --reset", "an argument is empty; see `sharedkernel quota --help`."),
        ("policy fair fifo", "'fifo' is not understood; name one policy."),
        ("offload x --user ada", "name the sessions to offload by their ids, or all of one user by --user NAME."),
        ("stop ''", "an argument is empty; see `sharedkernel stop --help`."),
        ("stop --user ''", "--user names nobody; see `sharedkernel stop --help`."),
        ("ports tensorboard", "'tensorboard' is no port"),
        ("ports 0", "'0' is no port"),
        ("ports 6006 7860 --local-port 9000", "--local-port goes with one port"),
        ("shelf --remove x --remove-all", "--remove and --remove-all do not go together; say which."),
        ("shelf --user '' --remove-all", "--user names nothing; see `sharedkernel shelf --help`."),
        ("shelf --device host", "--device goes with --remove or --remove-all."),
        ("shelf ada", "'ada' is not understood; see `sharedkernel shelf --help`."),
        ("simulate", "which scenario? There are device, cluster, notebooks"),
        ("simulate cluster --policy dice", "no policy 'dice' here; there are fifo, srtf, las, gittins, allox"),
        ("simulate cluster --policy fifo --compare fifo", "either --policy or --compare"),
        ("simulate cluster --policy allox", "allox is no policy for like devices"),
        ("simulate cluster --devices many", "--devices takes a number, or kinds such as"),
        ("simulate cluster --las-thresholds 1,x", "--las-thresholds takes numbers separated by commas"),
        ("simulate cluster --plot x.txt", "x.txt is no name for a picture"),
        ("simulate device --workload x", "--workload is one of inference-42"),
        ("simulate notebooks --placement x", "there is no placement 'x'"),
        ("simulate notebooks --jobs 0", "--jobs is a number of jobs"),
        ("simulate class --students 0", "--students is 1 to 500"),
        ("simulate class --device large", "'large' is not an amount of memory"),
        ("simulate class --hours 9h", "--hours is 1 minute to 8 hours"),
        ("simulate class --policy best", "there is no policy 'best' here"),
    ],
)
def test_wrong_use_is_one_sentence_and_2(line: str, sentence: str) -> None:
    """Said in one line, without a traceback, and before a gateway is asked or anything is measured or simulated."""
    done = run_here(*shlex.split(line))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("sharedkernel: ")
    assert sentence in done.stderr
