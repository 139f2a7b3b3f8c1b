"""A shelf that goes to another host: what is read on the one executor, in parts, is written on the other."""

from __future__ import annotations

import asyncio

import pytest

from sharedkernel.errors import Refused
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.ipc.shelf_calls import WRITTEN_PART_BYTES
from tests.executor.harness import Executor, ExecutorProcess, until

IMPORT = "import torch; from sharedkernel import shelf\n"


async def charged(client: ExecutorClient, user: str) -> int:
    return sum(shelf.charged_bytes for shelf in await client.shelves(user))


async def read(client: ExecutorClient, user: str, name: str, *, length: int) -> tuple[bytes, int]:
    """Return what is on a shelf, read in parts of *length* bytes, and its number."""
    found, total, number = b"", 1, None
    while len(found) < total:
        part = await client.read_shelf(user, name, offset=len(found), length=length, number=number)
        number, total = part.number, part.total_bytes
        found += part.data
    assert number is not None
    return found, number


async def write(client: ExecutorClient, user: str, name: str, data: bytes, *, until_byte: int | None = None) -> None:
    for start in range(0, len(data) if until_byte is None else until_byte, WRITTEN_PART_BYTES):
        part = data[start : start + WRITTEN_PART_BYTES]
        await client.write_shelf(user, name, part=part, offset=start, total=len(data), at=1.7e9)


def test_tensors_arrive_as_they_were(process: ExecutorProcess) -> None:
    """Bit by bit, with what they share, in parts of any size; and they are on the shelf when all is there."""

    async def main() -> None:
        async with Executor(process) as executor:
            client = executor.client
            notebook, other = await executor.notebook("from"), await executor.notebook("to")
            await notebook.run(IMPORT + "x = torch.arange(400_000.); shelf['model'] = {'x': x, 'half': x[::2], 'n': 7}")
            data, _ = await read(client, "from", "model", length=777_777)
            assert data == (await read(client, "from", "model", length=1 << 30))[0]
            await write(client, "to", "model", data, until_byte=len(data) - 1_000_000)
            assert (await other.run(IMPORT + "list(shelf)")).text == "[]"
            assert await charged(client, "to") >= len(data)
            await write(client, "to", "model", data)
            check = "m = shelf['model']; m['x'][4] = -1; (m['half'][2].item(), m['x'].sum().item(), m['n'])"
            expected = "x[4] = -1; (x[::2][2].item(), x.sum().item(), 7)"
            assert (await other.run(check)).text == (await notebook.run(expected)).text
            (shelf,) = await client.shelves("to")
            assert shelf.entries[0].shelved_at == 1.7e9
            with pytest.raises(Refused, match="another 'model'"):  # a notebook has written into it
                await write(client, "to", "model", data)
            await other.run("del m")
            here, number = await read(client, "to", "model", length=1 << 30)
            before = await charged(client, "to")
            with pytest.raises(Refused, match="is here already") as refusal:
                await write(client, "to", "model", here)
            assert refusal.value.reason == "arrived"
            assert await charged(client, "to") == before
            assert await read(client, "to", "model", length=1 << 30) == (here, number)
            with pytest.raises(Refused, match="another 'model'"):
                await write(client, "to", "model", here + b"x")

    asyncio.run(main())


def test_what_a_notebook_uses_stays(process: ExecutorProcess) -> None:
    """It may be written at any moment: it is neither read nor, had somebody read it before, taken off."""

    async def main() -> None:
        async with Executor(process) as executor:
            client = executor.client
            notebook = await executor.notebook("user")
            await notebook.run(IMPORT + "shelf['model'] = torch.ones(9)")
            _, number = await read(client, "user", "model", length=1 << 20)
            await notebook.run("mine = shelf['model']")
            with pytest.raises(Refused, match="a notebook uses 'model'"):
                await client.read_shelf("user", "model", offset=0, length=1)
            with pytest.raises(Refused, match="no 'model'"):
                await client.take_off_shelf("user", "model", number)
            await notebook.run("del mine; shelf['model'] = torch.zeros(9)")
            with pytest.raises(Refused, match="was replaced"):
                await client.read_shelf("user", "model", offset=0, length=1, number=number)
            with pytest.raises(Refused, match="no 'model'"):
                await client.take_off_shelf("user", "model", number)
            _, number = await read(client, "user", "model", length=1 << 20)
            await client.take_off_shelf("user", "model", number)
            assert (await notebook.run("list(shelf)")).text == "[]"

    asyncio.run(main())


def test_what_cannot_be_taken_leaves_nothing(process: ExecutorProcess) -> None:
    """A name that is taken, no room, a part that is missing or too long: refused, and nothing is charged."""

    async def main() -> None:
        async with Executor(process) as executor:
            client = executor.client
            notebook = await executor.notebook("user")
            await notebook.run(IMPORT + "shelf['taken'] = torch.ones(9)")
            before = await charged(client, "user")
            with pytest.raises(Refused, match="another 'taken'"):
                await write(client, "user", "taken", bytes(100))
            assert (await notebook.run("shelf.copy('taken').sum().item()")).text == "9.0"
            with pytest.raises(Refused, match="'large' needs"):
                await client.write_shelf("user", "large", part=b"x", offset=0, total=1 << 50, at=0.0)
            with pytest.raises(Refused, match="not the next part"):
                await client.write_shelf("user", "new", part=b"x", offset=1, total=3, at=0.0)
            await client.write_shelf("user", "new", part=b"x", offset=0, total=3, at=0.0)
            with pytest.raises(Refused, match="too long"):
                await client.write_shelf("user", "new", part=b"xyz", offset=1, total=3, at=0.0)
            with pytest.raises(Refused, match="empty"):
                await client.write_shelf("user", "new", part=b"", offset=0, total=0, at=0.0)
            assert await charged(client, "user") == before
            # Another one takes the place of what has come in part.
            await client.write_shelf("user", "new", part=b"x", offset=0, total=1 << 20, at=0.0)
            assert await charged(client, "user") == before + (1 << 20)
            await client.write_shelf("user", "other", part=b"x", offset=0, total=1 << 16, at=0.0)
            assert await charged(client, "user") == before + (1 << 16)

    asyncio.run(main())


@pytest.mark.heavy
def test_what_does_not_go_on_is_dropped(process: ExecutorProcess) -> None:
    """After half a minute: the process that sent it may have ended."""

    async def main() -> None:
        async with Executor(process) as executor:
            client = executor.client
            await client.write_shelf("absent", "new", part=b"x", offset=0, total=1 << 20, at=0.0)
            assert await charged(client, "absent") == 1 << 20

            async def is_dropped() -> bool:
                return not await charged(client, "absent")

            await until(is_dropped, "it is dropped")
            with pytest.raises(Refused, match="not the next part"):
                await client.write_shelf("absent", "new", part=b"x", offset=1, total=1 << 20, at=0.0)

    asyncio.run(main())
