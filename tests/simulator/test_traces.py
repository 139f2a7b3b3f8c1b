"""Traces: what is read, and how what cannot be is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedkernel.errors import TraceError
from sharedkernel.simulator.traces import read_samples, read_trace

HEADER = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_times_come_out_in_seconds(tmp_path: Path) -> None:
    """The unit of the trace is told; everything after is in seconds."""
    path = write(tmp_path, HEADER + "7,4,1500,20,vgg19,3000,0\n")
    (job,) = read_trace(path, time_unit="ms").jobs
    assert (job.id, job.devices, job.submitted, job.duration) == ("7", 4, 1.5, 3.0)
    assert job.user == ""


def test_columns_may_come_in_any_order_and_others_are_ignored(tmp_path: Path) -> None:
    """Only names count; users and times by kind of device are read where they are."""
    path = write(
        tmp_path,
        "priority,duration,user,job_id,duration_fast,submit_time,num_gpu,duration_slow\nx,5,ada,a,2,0.5,1,\n\n",
    )
    (job,) = read_trace(path).jobs
    assert (job.duration, job.user, job.submitted) == (5.0, "ada", 0.5)
    assert job.durations == {"fast": 2.0}


@pytest.mark.parametrize(
    ("row", "column", "what"),
    [
        ("1,1,0,0,m,soon,0", "duration", "'soon' is no number"),
        ("1,1,0,0,m,0,0", "duration", "'0' is not a number greater than 0"),
        ("1,1,0,0,m,inf,0", "duration", "'inf' is not a number greater than 0"),
        ("1,1,-3,0,m,5,0", "submit_time", "'-3' is not a number of at least 0"),
        ("1,0,0,0,m,5,0", "num_gpu", "'0' is not a whole number of at least 1"),
        ("1,1.5,0,0,m,5,0", "num_gpu", "'1.5' is not a whole number"),
        (",1,0,0,m,5,0", "job_id", "it is empty"),
        ("1,1,0", "duration", "it is empty"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_column(tmp_path: Path, row: str, column: str, what: str) -> None:
    """One sentence says where it is and what is wrong."""
    path = write(tmp_path, f"{HEADER}0,1,0,0,m,5,0\n{row}\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}, line 3, column {column}: {what}")


def test_bad_rows_can_be_left_out(tmp_path: Path) -> None:
    """Then the others are read, and what was left out is told."""
    path = write(tmp_path, f"{HEADER}0,1,0,0,m,5,0\n1,1,0,0,m,never,0\n2,1,0,0,m,5,0\n")
    trace = read_trace(path, skip_bad=True)
    assert [job.id for job in trace.jobs] == ["0", "2"]
    assert trace.skipped == (f"{path}, line 3, column duration: 'never' is no number.",)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "there is no column job_id, num_gpu, submit_time, duration"),
        ("job_id,duration\n1,2\n", "there is no column num_gpu, submit_time"),
        (HEADER, "has no usable row"),
        (HEADER + "1,1,0,0,m,x,0\n", "column duration"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, what: str) -> None:
    """What is missing is said."""
    with pytest.raises(TraceError, match=what):
        read_trace(write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Neither a missing file nor a picture ends in a traceback."""
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff\xfe")
    for read in (read_trace, read_samples):
        with pytest.raises(TraceError, match="no UTF-8 text"):
            read(tmp_path / "picture")


def test_samples(tmp_path: Path) -> None:
    """A column of durations is enough for a distribution."""
    assert read_samples(write(tmp_path, "duration\n3\n1.5\n")) == [3.0, 1.5]
    with pytest.raises(TraceError, match="line 2, column duration"):
        read_samples(write(tmp_path, "duration\n-1\n"))
    with pytest.raises(TraceError, match="have no row"):
        read_samples(write(tmp_path, "duration\n"))
