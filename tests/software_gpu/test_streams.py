"""Streams and events take time, and order work."""

from __future__ import annotations

import pytest

from tests.software_gpu.support import run_python

pytestmark = pytest.mark.software_gpu

#: how long one operation takes in these programs
SETTINGS = {"KERNEL_US": 20_000}

PREPARE = """
import time
import torch
x = torch.zeros(8, device="cuda")
torch.cuda.synchronize()
begun = time.monotonic()
"""


def test_launches_return_before_the_work_is_done() -> None:
    """The event is not reached then; synchronizing waits for it."""
    code = """if True:
        for _ in range(10):
            x.add_(1)
        event = torch.cuda.Event()
        event.record()
        assert time.monotonic() - begun < 0.1, "launches waited"
        assert not event.query()
        event.synchronize()
        assert event.query()
        assert time.monotonic() - begun >= 0.2
    """
    run_python(PREPARE + code, **SETTINGS)


def test_streams_wait_for_events_of_others() -> None:
    """The waiting stream is busy as long as the other, the third is not."""
    code = """if True:
        first, waiting, free = (torch.cuda.Stream() for _ in range(3))
        with torch.cuda.stream(first):
            for _ in range(10):
                x.add_(1)
        waiting.wait_stream(first)
        assert free.query()
        assert not waiting.query()
        waiting.synchronize()
        assert time.monotonic() - begun >= 0.2
    """
    run_python(PREPARE + code, **SETTINGS, SERIAL=0)


def test_time_between_events_is_that_of_the_work() -> None:
    """Ten kernels take ten times as long as one."""
    code = """if True:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            x.add_(1)
        end.record()
        end.synchronize()
        assert 200 <= begin.elapsed_time(end) < 300, begin.elapsed_time(end)
    """
    run_python(PREPARE + code, **SETTINGS)


def test_reading_a_value_waits_for_the_work() -> None:
    """`item` returns what all kernels before it computed."""
    code = """if True:
        for _ in range(10):
            x.add_(1)
        assert x[0].item() == 10
        assert time.monotonic() - begun >= 0.2
    """
    run_python(PREPARE + code, **SETTINGS)


def test_record_stream_keeps_memory_until_the_other_stream_is_done() -> None:
    """A block that another stream still uses is not given to the next tensor, and is afterwards."""
    code = """if True:
        def make():
            return torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.Stream()
        block = make()
        address = block.data_ptr()
        with torch.cuda.stream(stream):
            for _ in range(10):
                x.add_(1)
        block.record_stream(stream)
        del block
        kept = make()
        assert not stream.query()
        assert kept.data_ptr() != address
        stream.synchronize()
        assert make().data_ptr() == address
    """
    run_python(PREPARE + code, **SETTINGS)
