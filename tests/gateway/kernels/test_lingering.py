"""Sessions that were shut down and linger: they make room for others of their users, and end in time."""

from __future__ import annotations

import json

from tests.gateway.conftest import Stack
from tests.gateway.devices import until
from tests.gateway.kernels.conftest import NOTEBOOK, attach, leave, sessions


async def test_what_lingers_does_not_give_way_to_its_own_notebook(lingering_stack: Stack) -> None:
    """It is what the new session of its user, who has as many as they may, would bring back; an earlier one goes."""
    grace = lingering_stack.client("grace")

    await grace.start(KERNEL_NOTEBOOK="b.ipynb")
    for number in (1, 2):
        await leave(grace, f"x = {number}", NOTEBOOK)
    new = await grace.start(KERNEL_NOTEBOOK=NOTEBOOK)
    assert [entry["lingering"] for entry in (await sessions(grace)).values()].count(True) == 1
    async with grace.attach(new) as channels:
        await attach(channels)
        assert (await channels.run("x"))["text"] == "2"


async def test_a_running_cell_ends_with_a_shutdown(lingering_stack: Stack) -> None:
    """It would use the device for as long as its session stays; its user reads who did it, and has all else back.

    So is who was away; others learn nothing.
    """
    grace, ada, mary = [lingering_stack.client(user) for user in ("grace", "ada", "mary")]

    old = await grace.start(KERNEL_NOTEBOOK=NOTEBOOK)
    async with grace.attach(old) as channels:
        assert (await channels.run("x = 41"))["status"] == "ok"
        cell = await channels.send("execute_request", {"code": "x += 1; print(x)\nwhile True: pass", "silent": False})
        await channels.until("stream", cell, name="stdout")
        assert (await ada.request("DELETE", f"/api/kernels/{old}")).status == 204
        error = (await channels.until("error", cell))[-1]["content"]
        assert error["ename"] == "KeyboardInterrupt"
        told = (await channels.until("stream", cell, name="stderr"))[-1]["content"]["text"]
        assert told.startswith("This session was shut down by ada; `%shared attach` brings it back with its variab")
    assert (await sessions(grace))[old]["lingering"]
    for client, sentence in ((grace, "shut down by ada. `%shared attach` brings it back"), (ada, ""), (mary, "")):
        answer = await client.request("GET", f"/api/kernels/{old}/channels")
        assert (answer.status, sentence in str(answer.body)) == (404, True)
        assert ("shut down" in str(answer.body)) is (client is grace)

    async def is_at_rest() -> bool:
        return (await sessions(grace))[old]["state"] in ("idle", "offloaded")

    await until(is_at_rest)
    new = await grace.start(KERNEL_NOTEBOOK=NOTEBOOK)
    async with grace.attach(new) as channels:
        await attach(channels)
        assert (await channels.run("x"))["text"] == "42"


async def test_lingering_sessions_give_way_and_end(lingering_stack: Stack) -> None:
    """The earliest where its user wants more than they may have; each when its time is over; an unused one at once."""
    grace, mary = lingering_stack.client("grace"), lingering_stack.client("mary")

    first, second = [await leave(grace, "x = 1", notebook) for notebook in ("a.ipynb", "b.ipynb")]
    assert set(await sessions(grace)) == {first, second}
    third = await grace.start(KERNEL_NOTEBOOK="c.ipynb")
    assert {session for session, entry in (await sessions(grace)).items() if entry["user"] == "grace"} == {
        second,
        third,
    }
    await grace.end(third)  # it has run nothing
    left = await leave(mary, "x = 1")

    async def is_over() -> bool:
        return left not in await sessions(mary)

    await until(is_over)
    assert third not in await sessions(grace)
    await leave(grace, "x = 1", "")  # of no notebook, so nobody could ask for it
    assert [entry["user"] for entry in (await sessions(grace)).values()] == ["grace"]
    assert (await mary.request("DELETE", f"/api/kernels/{second}?linger=0")).status == 404
    assert (await grace.request("DELETE", f"/api/kernels/{second}?linger=soon")).status == 400
    assert (await grace.request("DELETE", f"/api/kernels/{second}?linger=0")).status == 204
    assert await sessions(grace) == {}
    entries = map(json.loads, (lingering_stack.runtime_directory / "audit.jsonl").read_text().splitlines())
    about = [
        (entry["user"], entry["status"])
        for entry in entries
        if entry["session"] == second and entry["owner"] == "grace" and entry["action"] == "end session"
    ]
    assert about[-3:] == [("mary", 404), ("grace", 400), ("grace", 204)]
