"""Spares are made up again, and not again and again where nothing can be forked."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from sharedkernel.errors import Refused
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.sessions.pool import SessionPool
from sharedkernel.executor.supervision.environments import OWN

#: seconds until the second fork
_FIRST = 0.1


class _FullMachine:
    """A supervisor where no process can be forked."""

    warm_environments = (OWN,)

    def __init__(self) -> None:
        self.processes: dict[str, SessionHandle] = {}
        self.tried_at: list[float] = []
        self.tried = asyncio.Event()

    async def fork(self, environment: str = OWN, *, taken: bool = False) -> SessionHandle:
        self.tried_at.append(asyncio.get_running_loop().time())
        self.tried.set()
        raise Refused("a session did not start: no space left on device; try again.", reason="start")


def test_spares_that_fail_are_tried_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """Each failure doubles the pause before the next fork, and says why and when; asking for more changes nothing."""

    async def main() -> list[float]:
        machine = _FullMachine()
        pool = SessionPool(machine, 3, first_retry=_FIRST)
        pool.want()
        while len(machine.tried_at) < 5:
            await machine.tried.wait()
            machine.tried.clear()
            pool.want()
        pool.close()
        return machine.tried_at

    with caplog.at_level(logging.WARNING):
        tried_at = asyncio.run(main())
    pauses = [after - before for before, after in itertools.pairwise(tried_at)]
    assert [pause >= least for pause, least in zip(pauses[2:], (0.4, 0.8), strict=False)] == [True, True]
    assert "no space left on device" in caplog.records[-1].getMessage()
    assert "next try in" in caplog.records[-1].getMessage()
