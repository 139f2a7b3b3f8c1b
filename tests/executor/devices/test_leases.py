"""What sessions of one user may grow to beside each other."""

from __future__ import annotations

import itertools
import sys
import threading

from sharedkernel.executor.devices.leases import Leases, UserMemory
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.protocol import Allowance, Device, Limits, Memory
from tests.executor.devices.support import make_process

MIB = 1 << 20
DEVICE = Device(name="host", kind="host", capacity_bytes=1000 * MIB, reserve_bytes=0)


async def test_a_session_kept_only_to_be_had_back_takes_nothing_of_the_quota() -> None:
    """The one that computes may have all of it; no message names bytes of other sessions."""
    limits = Limits(user="ada", quota_bytes=400 * MIB)
    computing, kept = (make_process(name, limits=limits) for name in ("computing", "kept"))
    leases: dict[str, Allowance] = {}
    computing.memory, kept.memory = Memory(persistent=100 * MIB), Memory(persistent=300 * MIB)
    computing.page.words[Word.TURN] = Turn.HOLDING
    kept.lingers_until = 60.0
    book = Leases(DEVICE, lambda process, allowance: leases.update({process.process: allowance}))
    book.update([UserMemory(user="ada", sessions=[computing, kept], shelf=0)])
    allowance = leases["computing"]
    assert allowance.limit_bytes == 400 * MIB
    assert allowance.others_bytes == 0


async def test_a_lease_is_the_sum_of_figures_of_one_moment() -> None:
    """A session that makes and frees memory all the time may always have the whole quota, neither less nor more."""
    quota, size = 400 * MIB, 64 * MIB
    process = make_process(limits=Limits(user="ada", quota_bytes=quota))
    found: set[int] = set()
    words, has_ended = process.page.words, threading.Event()
    words[Word.TURN] = Turn.HOLDING

    def make_and_free() -> None:
        for made in itertools.cycle((size, 0)):  # the interpreter changes threads where a loop begins anew
            words[Word.LIVE] = made
            if has_ended.is_set():
                return

    thread = threading.Thread(target=make_and_free)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        book = Leases(DEVICE, lambda _, allowance: found.add(allowance.limit_bytes))
        for _ in range(5000):
            book.update([UserMemory(user="ada", sessions=[process], shelf=0)])
    finally:
        has_ended.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert found == {quota}
