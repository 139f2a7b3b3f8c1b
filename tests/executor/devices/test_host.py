"""Limits on the private memory of sessions, on processes of this test's own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from unittest.mock import Mock

import pytest

from sharedkernel.executor.devices.host import HostLimits, describe
from sharedkernel.executor.devices.leases import UserMemory
from sharedkernel.executor.processes.user_quota import HOST_CONTEXT_BYTES
from sharedkernel.quota_check import SLACK_BYTES
from sharedkernel.system.processes import may_raise_limits
from tests.executor.devices.support import GIB, make_process


async def test_an_adopted_session_keeps_its_limit_until_it_greets(sleepers: list[int]) -> None:
    """Before that nobody knows what it needs: a limit from figures that are all 0 would end its cell."""
    pid = sleepers[0]
    session = make_process(pid=pid)
    device = HostLimits(describe(GIB, 0))
    before = resource.prlimit(pid, resource.RLIMIT_DATA)
    device.update([UserMemory(user="ada", sessions=[session], shelf=0)])
    assert resource.prlimit(pid, resource.RLIMIT_DATA) == before
    session.data_bytes, session.transport = GIB, Mock(get_write_buffer_size=lambda: 0)
    device.update([UserMemory(user="ada", sessions=[session], shelf=0)])
    assert resource.prlimit(pid, resource.RLIMIT_DATA)[0] == 2 * GIB + SLACK_BYTES


@pytest.mark.skipif(not may_raise_limits(), reason="this process has no CAP_SYS_RESOURCE, so limits stay soft")
async def test_the_limit_of_another_account_cannot_be_lifted(sleepers: list[int]) -> None:
    """The hard limit goes with the soft one, up and down; a session's own work has some room between them."""
    pid = sleepers[0]
    session = make_process(pid=pid)
    session.uid, session.data_bytes = os.getuid() + 1, GIB
    session.transport = Mock(get_write_buffer_size=lambda: 0)
    device = HostLimits(describe(GIB, 0))
    for size in (GIB, 3 * GIB, 2 * GIB):
        session.data_bytes = size
        device.update([UserMemory(user="ada", sessions=[session], shelf=0)])
        soft, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        assert (soft, hard) == (size + GIB + SLACK_BYTES, soft + 2 * HOST_CONTEXT_BYTES)


def test_a_session_sets_its_own_limit_below_a_hard_one() -> None:
    """An executor that could lower it may be followed by one that cannot raise it."""
    code = """if True:
        import resource
        from sharedkernel.ipc.shared_page import Page
        from sharedkernel.protocol import Allowance
        from sharedkernel.session.memory.host_meter import HostMeter
        meter = HostMeter(Page.create("limits"))
        def allow(size):
            figures = dict.fromkeys(("limit_bytes", "quota_bytes", "others_bytes", "capacity_bytes"), 0)
            meter.allow(Allowance(**figures, data_limit_bytes=size))
            print(resource.getrlimit(resource.RLIMIT_DATA)[0] >> 30)
        allow(5 << 30)
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
        allow(5 << 30)
        allow(3 << 30)
    """
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["5", "4", "3"]
