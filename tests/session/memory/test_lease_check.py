"""Failed allocations reach the user as torch.OutOfMemoryError with figures."""

from __future__ import annotations

import pytest
import torch

from sharedkernel.protocol import Allowance, Memory
from sharedkernel.session.memory.lease_check import ErrorTranslator, LeaseCheck

GIB = 1 << 30


@pytest.fixture
def lease() -> LeaseCheck:
    lease = LeaseCheck()
    lease.allowance = Allowance(
        limit_bytes=GIB, quota_bytes=2 * GIB, others_bytes=GIB, capacity_bytes=8 * GIB, holders=(("ada", 3 * GIB),)
    )
    return lease


def translated(lease: LeaseCheck, error: BaseException) -> BaseException:
    return ErrorTranslator(lease, used=lambda: 3 << 20).translate(error)


def test_beyond_the_allowance_the_error_has_all_figures(lease: LeaseCheck) -> None:
    """Used, allowed, quota and other sessions are named; a session that uses no more than it may is left alone."""
    lease.check(Memory(persistent=GIB))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        lease.check(Memory(persistent=GIB + GIB // 2))
    for figure in ("1.5 GiB", "1.0 GiB", "2.0 GiB"):
        assert figure in str(caught.value)
    assert "8.0 GiB" not in str(caught.value), "it is the quota that has no room"


def test_a_real_failed_allocation_is_translated(lease: LeaseCheck) -> None:
    """What torch's own allocator raises becomes the quota's error, with the original as its context."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    error = translated(lease, caught.value)
    assert isinstance(error, torch.OutOfMemoryError)
    assert error.__context__ is caught.value
    for part in ("uses 3.0 MiB, asked for 1073741824 GiB more, and may use 1.0 GiB", "your quota is 2.0 GiB"):
        assert part in str(error)
    assert translated(lease, other := RuntimeError("shapes do not match")) is other


def test_a_gpus_failed_allocation_gets_the_figures_too(lease: LeaseCheck) -> None:
    """Torch's own sentence about the whole GPU tells its user little; what they asked for stays in it."""
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.50 MiB. GPU 0 has a total capacity of 139.80 GiB of which 1.06 GiB "
        "is free. 2.00 GiB allowed; Of the allocated memory 1.90 GiB is allocated by PyTorch."
    )
    assert lease.is_allocation_failure(error)
    assert lease.asked_bytes(error) == int(20.5 * (1 << 20))
    ours = translated(lease, error)
    assert ours is not error
    assert "asked for 20.5 MiB more" in str(ours)
    assert "your quota is 2.0 GiB" in str(ours)
    assert translated(lease, ours) is ours


def test_a_cell_is_blamed_for_what_it_added_only(lease: LeaseCheck) -> None:
    """One that leaves too much fails, unless there was as much before it."""
    assert lease.excess(0, GIB) is None
    assert "the session uses 1.5 GiB" in str(lease.excess(GIB, GIB + GIB // 2))
    assert lease.excess(2 * GIB, 2 * GIB + 4096) is None
    assert lease.excess(3 * GIB, 2 * GIB) is None
