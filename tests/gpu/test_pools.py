"""Torch's allocator over addresses of ours, with torch's CUDA build: what it forbids while a pool is begun.

What these tests look for ends processes: an assertion in torch's destructors, or two threads that wait for each other.
So each runs in one of its own, with lane memory over torch on a GPU and the executor's store beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.usefixtures("gpu")]

#: seconds that such a process may take, on a busy machine
PATIENCE = 90.0
_IMPORTS = """
import os, subprocess, sys, threading
import torch
from sharedkernel.device_memory.driver import MIB
from sharedkernel.selftest import lane_process
from sharedkernel.selftest.lane_process import LANE, LaneProcess, empty, pool_bytes

def keep_busy(stream):
    lane_process.keep_busy(stream)
    assert not stream.query(), "the device is faster than this test"
"""


def run_alone(code: str, **environment: str) -> None:
    """Run *code* in a process of its own, after `_IMPORTS`."""
    process = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _IMPORTS + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=PATIENCE, cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
    )  # fmt: skip
    assert process.returncode == 0, f"exit status {process.returncode}\n{process.stdout}\n{process.stderr[-6000:]}"


def test_pools_are_dropped_as_soon_as_torch_allows_it() -> None:
    """Retired ones and users', inside iterations and outside; not while others or a graph are begun, nor at exit."""
    run_alone("""
        process = LaneProcess(64 * MIB)

        # the lane changes its size, and the pools over its earlier units go
        for size in (64, 96, 32, 80):
            process.resize_lane(size * MIB)
            for _ in range(4):
                process.begin_turn()
                activations = [empty(8 * MIB) for _ in range(3)]
                del activations
                process.memory.next_iteration()
                process.hand_over()
        process.memory.trim()
        assert process.arena.private_bytes < 24 * MIB, process.memory.figures()
        process.arena.validate(), process.store.validate()

        # a user's pool may be deleted at any time: it goes at the next boundary, once no other one is in use
        for inside in (False, True):
            if inside:
                process.begin_turn()
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                tensor = empty(32 * MIB)
            number = pool.id
            assert pool_bytes(number) == 32 * MIB
            del tensor, pool
            process.memory.next_iteration()
            assert pool_bytes(number) == 0
        first, second = torch.cuda.MemPool(), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(first):
            tensor = empty(32 * MIB)
        with torch.cuda.use_mem_pool(second):
            kept = empty(1)
            number = first.id
            del tensor, first
            process.memory.next_iteration()
            assert pool_bytes(number) == 32 * MIB
        process.memory.next_iteration()
        assert pool_bytes(number) == 0
        process.hand_over()

        # it stays while a graph is captured, even where the stream in use is not the captured one
        process.begin_turn()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(32 * MIB)
        process.hand_over()
        graph, source = torch.cuda.CUDAGraph(), empty(512)
        with torch.cuda.graph(graph):
            result = source + 1
            number = pool.id
            del tensor, pool
            with torch.cuda.stream(torch.cuda.Stream()):
                process.memory.next_iteration()
                process.memory.trim()
        process.memory.next_iteration()
        assert pool_bytes(number) == 0

        # destructors that run at exit meet no pool of ours that is begun
        process.begin_turn()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(MIB)
    """)


def test_snapshots_of_pools_leave_pythons_memory_whole() -> None:
    """Torch 2.11 drops references that it does not have with each; then False, or a number, is freed while in use."""
    run_alone("""
        others = [torch.cuda.MemPool() for _ in range(300)]  # small numbers are never freed
        process = LaneProcess()
        process.begin_turn()
        process.hand_over()
        before = sys.getrefcount(False)
        for _ in range(500):
            process.begin_turn()
            process.hand_over()
        assert sys.getrefcount(False) > before - 100, before - sys.getrefcount(False)
    """)


def test_a_block_that_another_stream_uses_is_not_given_away() -> None:
    """`record_stream` keeps its promise over boundaries, with and without a turn in the lane."""
    run_alone("""
        process = LaneProcess()
        side = torch.cuda.Stream()
        for inside in (False, True, True, True, True):
            if inside:
                process.begin_turn()
            block = empty(4 * MIB)
            block.zero_()
            torch.cuda.synchronize()
            address = block.data_ptr()
            keep_busy(side)
            block.record_stream(side)
            del block
            process.memory.next_iteration()
            others = []
            for _ in range(8):
                others.append(empty(4 * MIB))
                # asked for last: the stream may have come to its end just before the allocation
                assert others[-1].data_ptr() != address or side.query(), "given away too early"
            del others
            side.synchronize()
            process.memory.next_iteration()
            empty(1)  # torch 2.13 and later look whenever they allocate
            stats = torch._C._cuda_memoryStats(0)
            assert stats["active_bytes"]["all"]["current"] == stats["allocated_bytes"]["all"]["current"], "never freed"
            if inside:
                process.hand_over()
    """)


def test_fresh_memory_is_clean_before_a_side_stream_writes_there() -> None:
    """The fill does not queue behind work on the default stream, to come after the copy."""
    run_alone(
        """
        process = LaneProcess()
        source = torch.ones(8 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        side, before, kept = torch.cuda.Stream(), torch.cuda.Event(), []
        for _ in range(20):
            keep_busy(torch.cuda.default_stream())
            before.record()
            with torch.cuda.stream(side):
                fresh = empty(8 * MIB)
                fresh.copy_(source)
                side.synchronize()
            if not before.query():
                break
            kept.append(fresh)  # a busy machine has let the default stream come to its end: that shows nothing
        else:
            raise AssertionError("the device is faster than this test")
        torch.cuda.synchronize()
        assert bool((fresh.cpu() == 1).all()), "wiped by a fill that came late"
    """,
        SOFTWARE_GPU_SERIAL="0",
    )  # the streams of a software device side by side, too


def test_pools_are_freed_beside_threads_that_use_the_allocator() -> None:
    """No Python runs where it holds its mutex, for which one that reads statistics would wait; one may allocate."""
    run_alone("""
        import threading, time
        sys.setswitchinterval(1e-6)
        process = LaneProcess()
        is_over, errors = False, []

        def read() -> None:
            while not is_over:
                torch._C._cuda_memoryStats(0)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        end = time.monotonic() + 12
        while time.monotonic() < end:
            kept = [empty(20 * MIB) for _ in range(2)]
            del kept
            process.memory.trim()
        is_over = True
        reader.join()
        is_over = False

        def allocate(size) -> None:
            try:
                while not is_over:
                    tensor = empty(size)
                    tensor.fill_(3)
                    assert int(tensor[-1]) == 3
                    del tensor
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=allocate, args=(size * MIB,), daemon=True) for size in (1, 12, 21)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 10
        while time.monotonic() < end and not errors:
            process.memory.trim()
        is_over = True
        for thread in threads:
            thread.join()
        assert not errors, errors
        process.memory.trim()
        assert process.arena.private_bytes < 24 * MIB, process.memory.figures()
    """)
