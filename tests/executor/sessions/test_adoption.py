"""What outlives the executor, and how the next one takes over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable
from typing import Any

import psutil
import pytest

from sharedkernel import protocol
from sharedkernel.errors import ExecutorUnavailable
from sharedkernel.executor.dispatch.users import USAGE_NAME
from sharedkernel.executor.processes.process import start_time
from sharedkernel.paths import RECORDS_DIRECTORY
from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until
from tests.executor.sessions.test_sessions import FOREVER, TRAIN
from tests.processes import open_files
from tests.status.documents import to_json


@pytest.mark.heavy
async def test_a_session_may_end_while_an_executor_starts(start_executor: StartExecutor) -> None:
    """It is not there then, and all others are: killed after its page was taken over, before the warm parent is up."""
    process = start_executor("--spares", "0")

    async with Executor(process) as executor:
        doomed, other = await executor.notebooks("ada", "grace")
        warm_parent = parent_of(doomed)
        process.kill()
        warm_parent.kill()
        process.start()
        await until(lambda: num_pages(process.process.pid) >= 2, "the sessions' pages are taken over")
        os.kill(doomed.record.pid, signal.SIGKILL)
        await executor.connect()
        await executor.until_ended(doomed, "the session that ended is not there")  # nor was it, unless that took longer
        assert [record.session for record in await executor.client.sessions()] == [other.session]
        assert (await other.run("1 + 1")).text == "2"


def parent_of(notebook: Notebook) -> psutil.Process:
    """Return the warm parent of a notebook's session."""
    return psutil.Process(psutil.Process(notebook.record.pid).ppid())


def num_pages(pid: int) -> int:
    """Return how many sessions' shared pages a process has open."""
    return sum(name.startswith("/memfd:sharedkernel-") for name in open_files(pid).values())


async def test_the_next_executor_knows_which_sessions_there_are_and_which_have_run_something(
    process: ExecutorProcess,
) -> None:
    """The latter are kept for their users when they are shut down, also what ran while there was no executor.

    A gateway tells two processes of one session by their numbers, also when no executor saw both.
    """
    async with Executor(process) as executor:
        before, between, never, ended = await executor.notebooks("ada", "grace", "lin", "ada")
        await before.run("kept = 1")
        async with executor.away():
            await between.run("kept = 1")
            os.kill(ended.record.pid, signal.SIGKILL)
            await until(lambda: not psutil.pid_exists(ended.record.pid), "the session has ended")
        there = {record.session for record in await executor.client.sessions()}
        assert there == {before.session, between.session, never.session}
        second = await executor.notebook(session=ended.session)
        assert ended.record.incarnation < second.record.incarnation < 1 << 53  # which JSON has exactly
        await executor.client.end_session(second.session)
        for notebook in (before, between):
            await executor.until_session(notebook, lambda entry: entry["used"], "it is known to have run something")
        assert not (await executor.session(never))["used"]
        for notebook in (before, between, never):
            await executor.client.linger_session(notebook.session, 3600.0)
        kept = {record.session for record in await executor.client.sessions()}
        assert kept == {before.session, between.session}


@pytest.mark.heavy
async def test_sessions_outlive_a_killed_executor(fifo_process: ExecutorProcess) -> None:
    """Idle, running and waiting sessions are all there for the next executor, with tensors and service."""
    async with Executor(fifo_process) as executor:
        idle, running, waiting = await executor.notebooks("ada", "grace", "lin")
        await idle.run("import torch; x = torch.arange(6.)")
        await running.run(TRAIN)
        endless = asyncio.create_task(running.run(FOREVER))

        def runs() -> Awaitable[Any]:
            return executor.until_session(running, lambda entry: entry["state"] == "running", "the training runs")

        def waits() -> Awaitable[Any]:
            return executor.until_session(waiting, lambda entry: entry["queue_position"] == 1, "the other waits")

        await runs()
        queued = asyncio.create_task(waiting.run("import torch; int(torch.ones(3).sum())"))

        await waits()
        served = await until(
            lambda: sum(each.attained for each in fifo_process.records() if each.session == running.session),
            "its record has its service",
        )
        await executor.replace()
        assert {record.session: record.pid for record in await executor.client.sessions()} == {
            notebook.session: notebook.record.pid for notebook in (idle, running, waiting)
        }
        await runs()
        await waits()
        assert (await executor.session(running))["attained_service_seconds"] >= served
        await executor.client.signal_session(running.session, signal.SIGINT)
        assert (await endless).error == "KeyboardInterrupt"
        assert (await queued).text == "3"
        assert (await idle.run("float(x.sum())")).text == "15.0"


@pytest.mark.heavy
async def test_a_session_whose_gateway_went_away_while_it_was_forked_is_not_started(
    start_executor: StartExecutor,
) -> None:
    """The next gateway may have asked already which sessions there are; it would be nobody's for ever."""
    async with Executor(start_executor("--spares", "0")) as executor:
        first = await executor.notebook()
        warm_parent = parent_of(first)
        warm_parent.suspend()
        try:
            start = asyncio.create_task(executor.client.start_session("lost", protocol.Limits(user="ada")))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(start), 1.0)
            await executor.connect()  # anew
            with pytest.raises(ExecutorUnavailable):
                await start
            assert [record.session for record in await executor.client.sessions()] == [first.session]
        finally:
            warm_parent.resume()
        await until(lambda: "whoever asked for it is gone" in executor.process.log(), "the start is given up")
        notebook = await executor.notebook()  # of the process that was forked for the other
        there = {record.session for record in await executor.client.sessions()}
        assert there == {first.session, notebook.session}


@pytest.mark.heavy
async def test_a_session_that_was_not_assigned_is_not_adopted(start_executor: StartExecutor) -> None:
    """It would run its user's cells in the folder and with the rights of a spare; another is started in its place."""
    process = start_executor()

    async with Executor(process) as executor:
        (spare,) = await until(process.spares, "there is a spare")
        os.kill(spare.pid, signal.SIGSTOP)
        start = asyncio.create_task(executor.client.start_session("anew", protocol.Limits(user="ada")))
        await until(
            lambda: [each.pid for each in process.records() if each.session == "anew"] == [spare.pid],
            "the spare has a session",
        )
        await executor.replace()
        with pytest.raises(ExecutorUnavailable):
            await start
        assert await executor.client.sessions() == []
        notebook = await executor.notebook(session="anew")
        await until(lambda: start_time(spare.pid) != spare.started, "it is ended")
        await executor.replace()
        assert [record.pid for record in await executor.client.sessions()] == [notebook.record.pid]


@pytest.mark.heavy
async def test_what_users_had_outlives_executors(process: ExecutorProcess) -> None:
    """Service, iterations and peak of sessions that ended count on, also after a kill once they are on the disk.

    The executor was killed after it had written a record's file, before it gave it its name: that is no other session.
    """

    async def user(executor: Executor) -> dict[str, Any]:
        return dict(next(user for user in to_json(await executor.client.status())["users"] if user["name"] == "ada"))

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run(f"{TRAIN}\ntrain(20)")
        await executor.client.end_session(notebook.session)
        before = await user(executor)
        assert before["attained_service_seconds"] > 0
        assert before["iterations"] > 0
        kept = executor.process.runtime_directory / USAGE_NAME

        async def is_kept() -> bool:
            found = json.loads(kept.read_text())["users"] if kept.exists() else []
            return any(user["iterations"] == before["iterations"] for user in found)

        await until(is_kept, "it is on the disk")
        notebook = await executor.notebook()
        async with executor.away():
            records = executor.process.runtime_directory / RECORDS_DIRECTORY
            for record in list(records.iterdir()):
                record.with_name(f".{record.name}").write_bytes(record.read_bytes())
        assert [record.pid for record in await executor.client.sessions()] == [notebook.record.pid]
        assert not [path for path in records.iterdir() if "." in path.name]
        after = await user(executor)
        for figure in ("attained_service_seconds", "iterations", "peak_bytes"):
            assert after[figure] >= before[figure], figure
