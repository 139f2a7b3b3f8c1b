"""Torch's pool functions: their order, and what holds when one of them fails."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from sharedkernel.device_memory import torch_pool
from sharedkernel.device_memory.driver import DriverUnavailable, InvalidMapping
from sharedkernel.device_memory.torch_pool import TorchPools, is_called_back
from tests.device_memory.pool_model import MIB, Block, ModelTorch, OutOfMemoryError

_START = 1 << 45


@pytest.fixture
def torch():
    return ModelTorch()


@pytest.fixture
def pools(torch):
    return TorchPools(torch)


def _begun(pools, allocate):
    """Return a pool that is begun, and asks *allocate* for addresses."""
    pool = pools.make(allocate)
    pools.begin(pool)
    return pool


def _addresses(start: int = _START):
    """Return a function that gives addresses side by side, without memory."""
    end = start

    def allocate(size: int) -> int:
        nonlocal end
        end += size
        return end - size

    return allocate


def test_a_cpu_build_of_torch_is_refused_in_one_sentence():
    """Before anything is made."""
    torch = types.SimpleNamespace(__version__="2.13.0+cpu", _C=types.SimpleNamespace())
    with pytest.raises(DriverUnavailable, match="install a CUDA build"):
        TorchPools(torch)


def test_the_allocator_is_told_to_give_its_mutex_up(torch, pools):
    """Before the first callback can come."""
    assert "release_lock_on_cudamalloc:True" in torch.settings
    assert "expandable_segments:False" in torch.settings


def test_begin_end_and_release_come_in_this_order(torch, pools):
    """And the inner pool wins."""
    outer, inner = pools.make(_addresses()), pools.make(_addresses(2 * _START))
    torch.calls.clear()
    pools.begin(outer)
    pools.begin(inner)
    assert torch.malloc(100).pool.id == inner.memory_pool.id
    with pytest.raises(InvalidMapping):
        pools.begin(inner)
    pools.end(inner)
    pools.end(inner)
    assert torch.malloc(100).pool.id == outer.memory_pool.id
    pools.end(outer)
    assert torch.calls == ["begin", "begin", "end", "release", "end", "release"]
    assert torch.malloc(100).pool.id == (0, 0)


@pytest.mark.parametrize("call", ["begin", "end", "release"])
def test_a_call_that_fails_leaves_no_pool_behind(torch, pools, call):
    """Nothing stays routed to the pool, no use stays counted, and it can begin again."""
    pool = pools.make(_addresses())
    torch.failing.add(call)
    if call == "begin":
        with pytest.raises(RuntimeError, match="begin failed"):
            pools.begin(pool)
        assert torch.calls == ["begin"]
    else:
        pools.begin(pool)
        with pytest.raises(RuntimeError, match=f"{call} failed"):
            pools.end(pool)
        assert torch.calls == ["begin", "end", "release"]
    assert not pool.is_begun
    if call == "end":
        # torch itself has failed; its state is its own
        torch.under_way.clear()
    assert torch.malloc(100).pool.id == (0, 0)
    pools.begin(pool)
    assert torch.malloc(100).pool.id == pool.memory_pool.id


def test_leaving_all_pools_for_a_moment_puts_them_back(torch, pools):
    """In their order, also when torch fails in between."""
    _begun(pools, _addresses()), _begun(pools, _addresses(2 * _START))
    order = list(torch.under_way)

    def free_for_a_stream() -> Block:
        block = torch.malloc(MIB)
        torch.record_stream(block, 3)
        torch.free(block)
        return block

    pools.process_events()
    assert torch.under_way == order
    block = free_for_a_stream()
    pools.synchronize()
    pools.process_events()
    assert block.state == "inactive"
    free_for_a_stream()
    torch.failing.add("release")
    with pytest.raises(RuntimeError):
        pools.process_events()
    assert torch.under_way == order


def test_callbacks_live_as_long_as_the_process(torch, pools):
    """Torch may call them when nobody of ours remembers them."""
    pool = _begun(pools, _addresses())
    gc.collect()
    block = torch.malloc(3 * MIB)
    assert block.address == _START
    assert pool.segments == {_START: 20 * MIB}
    torch.free(block)
    segments, pool.seen = pool.segments, {_START}
    assert pools.drop(pool)
    del pool
    gc.collect()
    assert segments == {_START: 20 * MIB}


def _out_of(error: BaseException):
    """Return a function that gives no memory."""

    def refuse(size: int) -> int:
        raise error

    return refuse


@pytest.mark.parametrize(
    ("raised", "seen"), [(ValueError("a reason"), OutOfMemoryError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_no_error_passes_through_torch(torch, pools, raised, seen):
    """Torch says that it is out of memory; an interrupt comes once it has returned, and is not lost."""
    pool = _begun(pools, _out_of(raised))
    with pytest.raises(seen):
        torch.malloc(1)
    pools.end(pool)


def test_an_interrupt_while_a_refusal_is_logged_is_not_lost(torch, pools):
    """That is a line of Python between torch's C++ and the callback that failed."""

    class Interrupting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.removeHandler(self)
            signal.raise_signal(signal.SIGINT)

    log = logging.getLogger(torch_pool.__name__)
    log.addHandler(Interrupting())
    log.setLevel(logging.INFO)
    pool = _begun(pools, _out_of(ValueError("a reason")))
    with pytest.raises(KeyboardInterrupt):
        torch.malloc(1)
    pools.end(pool)


def test_an_interrupt_is_not_lost_where_the_callback_s_own_objects_end(torch, pools):
    """They end with the traceback, after the last line of Python that could see to it."""

    class Answer:
        """Something of which Python says that it ends, such as an open file."""

        def __del__(self) -> None:
            ended.append(self)

    def interrupted(size: int) -> int:
        answer = Answer()
        try:
            raise ValueError
        except ValueError:  # which has another traceback, and the same frame
            interrupt(answer)
        return size

    def interrupt(_: Answer) -> None:
        of_a_frame_below = Answer()  # noqa: F841
        signal.raise_signal(signal.SIGINT)

    ended: list[Answer] = []
    pool = _begun(pools, interrupted)
    with pytest.raises(KeyboardInterrupt):
        torch.malloc(1)
    assert len(ended) == 2
    pools.end(pool)


def test_an_interrupt_at_any_moment_gives_no_wild_address(torch, pools):
    """It comes before a callback's first line when another thread has the interpreter's lock meanwhile."""
    main = threading.main_thread().ident
    pool = pools.make(_addresses())
    allocate = torch._pools[pool.number].allocator.allocate

    # An interrupt in `Thread.is_alive` can mark a running thread as ended.
    is_armed = is_over = False

    def interrupt() -> None:
        nonlocal is_over
        for _ in range(1000):
            time.sleep(0.0005)
            signal.pthread_kill(main, signal.SIGINT)
        is_over = True

    def raise_once(*_) -> None:
        nonlocal is_armed
        if is_armed:  # not while an interrupt is handled below
            is_armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, raise_once)
    thread = threading.Thread(target=interrupt)
    thread.start()
    found, num_interrupts = set(), 0
    while not is_over:
        try:
            while not is_over:
                is_armed = True
                found.add(allocate(MIB, 0, None))
            is_armed = False
        except KeyboardInterrupt:
            num_interrupts += 1
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert num_interrupts > 100
    assert found - {None} <= set(pool.segments)


def test_a_primed_pool_calls_back_no_more(torch, pools):
    """It owns all its segments, small and large, and nothing lives in them."""
    pool = _begun(pools, _addresses())
    pools.prime(pool, 5, 100 * MIB)
    assert torch.num_callbacks == 6
    assert pools.live_blocks([pool]) == []
    blocks = [torch.malloc(size) for size in (100, MIB, 5 * MIB, 70 * MIB, 20 * MIB)]
    blocks += [torch.malloc(MIB) for _ in range(8)]
    assert torch.num_callbacks == 6
    assert sorted(pools.live_blocks([pool])) == sorted((block.address, block.size) for block in blocks)


def test_a_signals_handler_knows_that_the_allocator_calls_back(torch, pools):
    """So it can leave the pools alone."""
    seen: list[bool] = []
    before = signal.signal(signal.SIGUSR2, lambda signum, frame: seen.append(is_called_back()))
    try:

        def allocate(size: int) -> int:
            signal.raise_signal(signal.SIGUSR2)
            return _START

        _begun(pools, allocate)
        signal.raise_signal(signal.SIGUSR2)
        torch.malloc(1)
        signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert seen == [False, True, False]


_STOPPED = """
import time
from sharedkernel.device_memory.torch_pool import TorchPools
from tests.device_memory.pool_model import ModelTorch

pools = TorchPools(ModelTorch(), has_threads=lambda: True)
pool = pools.make(lambda size: 1 << 45)
pools.begin(pool)
pools.end(pool)
print("ended", flush=True)
input()
print(pools.drop(pool), flush=True)
until = time.process_time() + 0.2
while time.process_time() < until:
    pass
print(pools.drop(pool), flush=True)
"""


def test_no_pool_is_destroyed_because_its_process_was_stopped():
    """Its threads were stopped as well: one of them may be on its way to the callback."""
    with subprocess.Popen([sys.executable, "-c", _STOPPED], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ended\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate("\n", timeout=60)[0].split() == ["False", "True"]
