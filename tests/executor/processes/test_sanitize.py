"""What a session says of itself and of its memory: lies gain it nothing, and cost nobody else anything."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from pathlib import Path

import msgspec
import pytest

from sharedkernel import protocol
from sharedkernel.errors import Refused
from sharedkernel.executor.processes.sanitize import MOST_BYTES, believe
from sharedkernel.gateway.fleet.placement import choose
from sharedkernel.protocol import Limits, Memory
from sharedkernel.scheduling.placement import Demand
from sharedkernel.status.document import SessionStatus
from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor, ExecutorProcess, until
from tests.status.documents import to_json

MIB = 1 << 20
#: figures that a page can hold and that nobody can have
_ABSURD = (1 << 63) - 1, -(1 << 63)


_wanted = partial(protocol.DeviceWantedReport, memory=Memory())
_released = partial(protocol.GrantReleasedReport, at="cell", memory=Memory())
_offloaded = partial(protocol.OffloadedReport, memory=Memory(), offloaded_bytes=1)
_declined = protocol.OffloadDeclinedReport


def _closed(persistent: int, ephemeral: int | None, framework: int) -> protocol.CellClosedReport:
    return protocol.CellClosedReport(memory=Memory(persistent=persistent, ephemeral=ephemeral, framework=framework))


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        (_closed(1 << 62, 1 << 62, 1 << 62), _closed(300, 100, 300)),
        (_closed(-1, None, -1), _closed(0, None, 0)),
        (_wanted(data_bytes=1 << 62, growth=1 << 62), _wanted(data_bytes=MOST_BYTES, growth=100)),
        (_released(live_bytes=-5, iterations=-5, utilisation=math.nan), _released()),
        (
            protocol.Foreseen(source="abc", remaining_iterations=-1, iteration_seconds=math.inf),
            protocol.Foreseen(source="abc"),
        ),
        (_offloaded(kept="a\nline\0" + "x" * 1000, seconds=math.inf), _offloaded(kept="a line " + "x" * 293)),
        (_declined(reason="nothing", message="It keeps."), _declined(reason="nothing", message="It keeps.")),
        (_declined(reason="x" * 1000, message="\x1b" * 1000), _declined(reason="unsafe", message=" " * 300)),
        (protocol.CellOpenedReport(), protocol.CellOpenedReport()),
    ],
)
def test_no_figure_counts_for_more_than_can_be(said: protocol.Message, believed: protocol.Message) -> None:
    """A claim is worth what the session could take (its quota) or has (as seen from outside), and is never negative."""
    for before in (Memory(), Memory(persistent=300, framework=300)):
        assert believe(said, quota=100, before=before, seen=lambda: 300) == believed


_SAY_MUCH = """if True:
    from sharedkernel import protocol
    from sharedkernel.ipc import current_session
    current_session._view._link.send(protocol.OffloadDeclinedReport(reason="x" * 1000, message="x" * 1_000_000))
"""


async def test_a_session_that_says_much_costs_nobody_the_status(process: ExecutorProcess) -> None:
    """Two of them would be more than a message can hold; of each, a line is passed on."""
    async with Executor(process) as executor:
        for user in ("liar", "other-liar"):
            notebook = await executor.notebook(user)
            await notebook.run(_SAY_MUCH)
            await executor.until_session(
                notebook, lambda entry: entry["offload_note"] == "x" * 300, "a line is passed on"
            )


async def test_what_a_session_starts_with_has_a_limit(process: ExecutorProcess) -> None:
    """It is kept for the next executor and told in every list of sessions, so more is refused before anything is done.

    What is within the limit outlives the executor.
    """
    async with Executor(process) as executor:
        with pytest.raises(Refused, match="more than the 49152") as refused:
            await executor.notebook(env={"KERNEL_X": "x" * (48 << 10)})
        assert refused.value.reason == "bad_request"
        notebook = await executor.notebook(env={"KERNEL_X": "x" * (47 << 10)})
        await executor.replace()
        assert [record.session for record in await executor.client.sessions()] == [notebook.session]


async def test_an_answer_may_be_longer_than_a_request(start_executor: StartExecutor) -> None:
    """Whoever asks for the status gets it however many users there are."""
    process = start_executor("--spares", "0")

    async with Executor(process) as executor:
        users = [f"user-{number}-{'x' * 100}" for number in range(6000)]
        for part in (users[:3000], users[3000:]):
            await executor.client.configure_users([Limits(user=user) for user in part])
        status = to_json(await executor.client.status())
        assert {user["name"] for user in status["users"]} >= set(users)
        assert len(msgspec.msgpack.encode(status)) > protocol.MAX_MESSAGE_BYTES


_PAGE = """if True:
    import mmap, os
    links = {{name: os.readlink("/proc/self/fd/" + name) for name in map(str, range(300))
             if os.path.islink("/proc/self/fd/" + name)}}
    page = int(next(name for name, target in links.items() if "memfd:sharedkernel-" in target))
"""
_SPOIL = (
    _PAGE
    + """
    for cut in (0, 100, 1 << 20):
        try:
            os.ftruncate(page, cut)
        except PermissionError:
            print("sealed")
    words = memoryview(mmap.mmap(page, 4096)).cast("q")
    for place in range({first}, len(words)):
        words[place] = {value}
"""
)


async def test_a_page_full_of_lies_harms_nobody_else(process: ExecutorProcess) -> None:
    """It cannot be cut off, others compute and allocate as before, and its own service is measured all the same.

    A session that spoils its whole page is ended by the next executor, which adopts the others.
    """
    async with Executor(process) as executor:
        liars = await executor.notebooks("liar", "liar", limits=Limits(user="liar", quota_bytes=100 * MIB))
        spoiler, other = await executor.notebooks("spoiler", "grace")
        for liar, value in zip(liars, _ABSURD, strict=True):
            outcome = await liar.run(_SPOIL.format(first=2, value=value))
            assert outcome.text == "sealed\n" * 3, outcome
        train = "import torch; x = torch.ones(1 << 24); sum((x * 2).sum().item() for _ in range(20))"
        assert (await other.run(train)).text == f"{20 * 2.0 * (1 << 24)}"
        assert (await executor.session(other))["attained_service_seconds"] > 0
        for liar in liars:
            await liar.run("import torch; torch.ones(1 << 20).sum()")
            assert (await executor.session(liar))["attained_service_seconds"] > 0
        await spoiler.run(_SPOIL.format(first=0, value=7))
        await executor.replace()
        await executor.until_ended(spoiler, "the spoiler is gone")
        assert (await other.run("x.sum().item()")).text == f"{1 << 24}.0"


_CLAIM = (
    _PAGE
    + """
    words = memoryview(mmap.mmap(page, 4096)).cast("q")
    for place in (2, 4, 5, 6, 7, 8, 10):
        words[place] = {value}
    open({began!r}, "w").close()
    import time
    while not os.path.exists({end!r}):
        time.sleep(0.01)
"""
)


async def test_absurd_figures_change_nobody_elses_placement_status_or_quota(
    process: ExecutorProcess, tmp_path: Path
) -> None:
    """Sessions write them into their pages in the middle of a cell: each counts for what it can have at most."""
    end = tmp_path / "end"

    async with Executor(process) as executor:
        liars = await executor.notebooks("liar", "liar", limits=Limits(user="liar", quota_bytes=100 * MIB))
        grace = await executor.notebook("grace")
        assert (await grace.run("import torch; x = torch.ones(1 << 24); x.sum().item()")).text == f"{1 << 24}.0"
        before = await executor.client.status()
        for liar in liars:
            await liar.run("import torch; torch.ones(1 << 18).sum()")
        claims = []
        for liar, value in zip(liars, _ABSURD, strict=True):
            began = tmp_path / str(value)
            code = _CLAIM.format(value=value, began=str(began), end=str(end))
            claims.append(asyncio.create_task(liar.run(code)))
            await until(began.exists, "the page is written")
        status = await executor.client.status()
        assert 0 <= status.device.used_bytes <= status.device.capacity_bytes
        for session in status.sessions:
            if session.user == "liar":
                for amount in (session.persistent_bytes, session.ephemeral_bytes, session.live_bytes):
                    assert 0 <= (amount or 0) <= 100 * MIB
                assert 0 <= session.framework_bytes <= 1 << 30
                assert 0 <= session.iterations < 1 << 30
        others = [_without_service(found.session(grace.session)) for found in (before, status)]
        assert others[0] == others[1]
        quotas = [user.quota_bytes for found in (before, status) if (user := found.user("grace")) is not None]
        assert len(quotas) == 2
        assert quotas[0] == quotas[1]
        # Two devices, one of them with the liars: the next notebook of another user goes where its memory fits.
        full = SessionStatus(id="full", user="hopper", state="idle", persistent_bytes=before.device.capacity_bytes)
        demand = Demand(memory=before.device.capacity_bytes // 4)
        other = msgspec.structs.replace(status, lanes=[], users=[], sessions=[full])
        assert choose("least-loaded", demand, {"lies": status, "full": other}, {"lies": 1, "full": 1}) == "lies"
        # Grace's next cell has as much as before.
        assert (await grace.run("y = torch.ones(1 << 25); y.sum().item()")).text == f"{1 << 25}.0"
        end.touch()
        assert [outcome.status for outcome in await asyncio.gather(*claims)] == ["ok", "ok"]


def _without_service(session: SessionStatus | None) -> SessionStatus:
    """Return a session's entry without what changes with time."""
    assert session is not None
    return msgspec.structs.replace(session, idle_seconds=0.0)
