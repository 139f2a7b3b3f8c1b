"""Limits on the private memory of sessions, on processes of this test's own."""

from __future__ import annotations

import asyncio
import resource
import subprocess
from unittest.mock import Mock

from sharedkernel.executor.devices.host import SLACK_BYTES, HostLimits, describe
from sharedkernel.executor.devices.leases import UserMemory
from tests.executor.devices.support import GIB, make_process


def test_an_adopted_session_keeps_its_limit_until_it_greets() -> None:
    """Before that nobody knows what it needs: a limit from figures that are all 0 would end its cell."""

    async def main(pid: int) -> None:
        session = make_process(pid=pid)
        device = HostLimits(describe(GIB, 0))
        before = resource.prlimit(pid, resource.RLIMIT_DATA)
        device.update([UserMemory(user="ada", sessions=[session], shelf=0)])
        assert resource.prlimit(pid, resource.RLIMIT_DATA) == before
        session.data_bytes, session.transport = GIB, Mock(get_write_buffer_size=lambda: 0)
        device.update([UserMemory(user="ada", sessions=[session], shelf=0)])
        assert resource.prlimit(pid, resource.RLIMIT_DATA)[0] == 2 * GIB + SLACK_BYTES

    with subprocess.Popen(["sleep", "60"]) as program:
        try:
            asyncio.run(main(program.pid))
        finally:
            program.kill()
