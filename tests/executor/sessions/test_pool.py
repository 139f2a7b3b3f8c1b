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
from sharedkernel.ipc.shared_page import Page

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


@pytest.mark.heavy
async def test_spares_that_fail_are_tried_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """Each failure doubles the pause before the next fork, and says why and when; asking for more changes nothing."""
    caplog.set_level(logging.WARNING)
    machine = _FullMachine()
    pool = SessionPool(machine, 3, first_retry=_FIRST)
    pool.want()
    while len(machine.tried_at) < 5:
        await machine.tried.wait()
        machine.tried.clear()
        pool.want()
    pool.close()
    pauses = [after - before for before, after in itertools.pairwise(machine.tried_at)]
    assert [pause >= least for pause, least in zip(pauses[2:], (0.4, 0.8), strict=False)] == [True, True]
    assert "no space left on device" in caplog.records[-1].getMessage()
    assert "next try in" in caplog.records[-1].getMessage()


class _Machine(_FullMachine):
    """A supervisor whose spares are ready at once."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    async def fork(self, environment: str = OWN, *, taken: bool = False) -> SessionHandle:
        ready = asyncio.get_running_loop().create_future()
        ready.set_result(None)
        name = f"spare-{len(self.tried_at)}"
        self.tried_at.append(asyncio.get_running_loop().time())
        spare = SessionHandle(
            process=name, pid=0, started=0, used=False, page=Page.create(name), ready=ready,
            environment=environment, isolation="none", stamp="",
        )  # fmt: skip
        if taken:
            spare.take()
        self.processes[name] = spare
        self.changed.set()
        return spare

    async def end(self, spare: SessionHandle) -> None:
        spare.end_asked = True
        del self.processes[spare.process]
        spare.page.close()
        self.changed.set()

    async def until_spares(self, number: int) -> None:
        """Return once there are so many."""
        async with asyncio.timeout(60):
            while sum(process.session is None for process in self.processes.values()) != number:
                await self.changed.wait()
                self.changed.clear()


@pytest.mark.heavy
async def test_spares_follow_demand() -> None:
    """One is there for the first user; a second start soon after brings four, a rush up to six, a quiet time one again.

    After a rush as many are kept as came, up to three times the usual number in demand. Where none are wanted there are
    none, whatever the demand: their memory is to be saved.
    """
    machine, rushed, saving = _Machine(), _Machine(), _Machine()
    saving_pool = SessionPool(saving, 0)
    for _ in range(3):
        assert (await saving_pool.take(OWN)).session is not None
    pool, rushed_pool = SessionPool(machine, 1, quiet=1.5), SessionPool(rushed, 1, in_demand=2, quiet=1.5)
    for _ in range(4):
        await rushed_pool.take(OWN)
    await rushed.until_spares(4)
    for _ in range(5):
        await rushed_pool.take(OWN)
    await rushed.until_spares(6)
    pool.want()
    await machine.until_spares(1)
    await pool.take(OWN)
    await machine.until_spares(1)
    assert len(machine.tried_at) == 2, "one start is no demand"
    await pool.take(OWN)
    await machine.until_spares(4)
    for each in (machine, rushed):
        await each.until_spares(1)
    assert sum(process.session is not None for process in machine.processes.values()) == 2, "nobody's session ends"
    assert len(saving.tried_at) == 3
    for each in (pool, rushed_pool, saving_pool):
        each.close()
    for process in (*machine.processes.values(), *rushed.processes.values(), *saving.processes.values()):
        process.page.close()
