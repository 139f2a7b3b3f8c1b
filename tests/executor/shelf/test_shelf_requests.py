"""What gateways do with users' shelves: look at them, and take things off."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedkernel.errors import Refused
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.protocol import UserShelf
from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor, ExecutorProcess, until
from tests.executor.supervision.test_upgrades import make_package, replaced
from tests.status.documents import to_json

IMPORT = "import torch; from sharedkernel import shelf\n"


async def shelf_of(client: ExecutorClient, user: str) -> UserShelf | None:
    """Return a user's shelf; None: nothing is charged for it."""
    shelves = await client.shelves(user)
    assert len(shelves) <= 1
    return shelves[0] if shelves else None


async def test_what_is_taken_off_stays_with_those_who_use_it(process: ExecutorProcess) -> None:
    """It is gone from the shelf, charged until the notebook lets go of it, and whole until then; a new one may come."""
    async with Executor(process) as executor:
        client = executor.client
        notebook = await executor.notebook("user")
        await notebook.run(IMPORT + "shelf['used'] = torch.arange(1000.); shelf['idle'] = torch.ones(1)")
        await notebook.run("used = shelf['used']")
        shelf = await shelf_of(client, "user")
        assert shelf is not None
        sizes = {entry.name: entry.bytes for entry in shelf.entries}
        assert sorted(sizes) == ["idle", "used"]
        assert (shelf.charged_bytes, shelf.used_bytes) == (sum(sizes.values()), 0)
        taken = await client.take_off_shelf("user")
        assert {entry.name: entry.bytes for entry in taken.entries} == sizes
        assert taken.used_bytes == sizes["used"]
        shelf = await shelf_of(client, "user")
        assert shelf is not None
        assert (shelf.entries, shelf.charged_bytes, shelf.used_bytes) == ([], sizes["used"], sizes["used"])
        assert (await notebook.run("list(shelf), float(used.sum())")).text == "([], 499500.0)"
        await notebook.run("used += 1; shelf['used'] = torch.zeros(1)")
        assert (await notebook.run("float(used.sum()), shelf['used'].tolist()")).text == "(500500.0, [0.0])"
        await client.take_off_shelf("user", "used")
        await notebook.run("del used")

        async def nothing() -> bool:
            return await shelf_of(client, "user") is None

        await until(nothing, "nothing is charged")


async def test_a_shelf_of_somebody_who_has_no_session_can_be_emptied(process: ExecutorProcess) -> None:
    """It stays charged until then, and others' stay as they are."""
    async with Executor(process) as executor:
        client = executor.client
        gone, here = await executor.notebook("gone"), await executor.notebook("here")
        for notebook in (gone, here):
            await notebook.run(IMPORT + "shelf['a'] = torch.ones(3); shelf['b'] = torch.zeros(4)")
        await client.end_session(gone.session)
        users = [shelf.user for shelf in await client.shelves()]
        assert {"gone", "here"} <= set(users)
        assert users == sorted(users)
        taken = await client.take_off_shelf("gone", "b")
        assert ([entry.name for entry in taken.entries], taken.used_bytes) == (["b"], 0)
        assert [entry.name for entry in (await client.take_off_shelf("gone")).entries] == ["a"]
        assert await shelf_of(client, "gone") is None
        charged = {user["name"]: user["shelf_bytes"] for user in to_json(await client.status())["users"]}
        assert charged.get("gone", 0) == 0
        assert (await here.run("shelf['a'].tolist(), shelf['b'].tolist()")).text == (
            "([1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0])"
        )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("x", "there is no 'x' on the shelf of 'nobody'."), (None, "there is nothing on the shelf of 'nobody'.")],
)
async def test_what_is_not_there_cannot_be_taken_off(process: ExecutorProcess, name: str | None, sentence: str) -> None:
    """The sentence names it."""
    async with Executor(process) as executor:
        with pytest.raises(Refused) as refused:
            await executor.client.take_off_shelf("nobody", name)
        assert (refused.value.reason, str(refused.value)) == ("not_shelved", sentence)


@pytest.mark.heavy
async def test_an_executor_of_an_earlier_version_is_not_asked_for_what_it_does_not_know(
    start_executor: StartExecutor, tmp_path: Path
) -> None:
    """It would hang up on that; a sentence says so, and all else goes on over the same connection."""
    process = start_executor()
    earlier = make_package(tmp_path)
    requests = earlier / "sharedkernel" / "protocol" / "requests.py"
    text, there = requests.read_text(), " | ListShelves\n    | TakeOffShelf |"
    assert text.count(there) == 1
    requests.write_text(text.replace(there, "\n    |"))

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await replaced(executor, earlier)
        await executor.connect()
        client = executor.client
        for request in (client.shelves(), client.take_off_shelf("ada")):
            with pytest.raises(Refused, match="is of an earlier version of sharedkernel, which") as refused:
                await request
            assert refused.value.reason == "earlier_version"
        assert client.connected
        await client.status()
        assert (await notebook.run("1 + 1")).text == "2"
        await replaced(executor, None)
        await executor.connect()
        assert await client.shelves() == []
