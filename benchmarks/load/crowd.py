"""A crowd of notebooks, and cells whose results are known.

Each notebook keeps a tensor that every cell of it changes: a cell that is lost, runs twice, or runs in somebody else's
session shows at the next one. Trainings print a digest of their losses, which must be the same for the same seed
wherever and whenever they run.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from benchmarks.stack.client import Notebook, Route, open_notebook
from benchmarks.stack.results import BenchmarkFailed

#: defines what the cells use; one thread, or the order of sums, and so the losses, would depend on the machine
_PREPARE = """
import hashlib, json, os, time
import torch
from torch import nn

torch.set_num_threads(1)
state = torch.tensor([{seed}], dtype=torch.int64)

def move():
    global state
    state = state * 6364136223846793005 + 1442695040888963407
    return state.item()

def train(seed, iterations):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, labels, losses = torch.randn(64, 64), torch.randint(10, (64,)), []
    for _ in range(iterations):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return hashlib.sha256(repr(losses).encode()).hexdigest()

print(json.dumps(os.getpid()))
"""
#: seeds of trainings, and iterations of each: a training takes about 0.1 s alone
_SEEDS, _ITERATIONS = range(8), 200
#: seconds of a cell that computes nothing on the device
_PAUSE = 0.5
_ECHO = "1+1"
#: notebooks that are opened, closed or settled in at one time
_AT_ONCE = 8
#: requests sent at once while settling in
_BATCH = 64


def _next_state(state: int) -> int:
    """Return what `move()` makes of *state*: int64, which wraps around."""
    moved = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
    return moved - (1 << 64) if moved >> 63 else moved


@dataclass(slots=True)
class Desk:
    """One notebook of the crowd."""

    notebook: Notebook
    #: closes the notebook
    context: AsyncExitStack
    #: what its tensor must hold
    state: int
    #: of its session
    pid: int
    is_busy: bool = False


@dataclass(slots=True)
class Tally:
    """What the crowd has seen."""

    #: cells by kind
    cells: Counter[str] = field(default_factory=Counter)
    #: what went wrong, in sentences
    wrong: list[str] = field(default_factory=list)
    #: of `1+1` in an idle notebook, in seconds
    round_trips: list[float] = field(default_factory=list)
    #: of the cells that made the crowd busy, in seconds
    cell_seconds: list[float] = field(default_factory=list)
    #: desks with a cell open, each time another cell began
    busy: list[int] = field(default_factory=list)
    #: notebooks closed and opened anew
    reopened: int = 0


class Crowd:
    """Notebooks of many users, made by :func:`gather`.

    Parameters
    ----------
    routes
        The way to each desk's session.
    chance
        Makes all of its choices.
    """

    def __init__(self, routes: Sequence[Route], chance: random.Random) -> None:
        self.routes = routes
        self.desks: list[Desk] = []
        self.tally = Tally()
        self._chance = chance
        self._digests: dict[int, str] = {}

    @property
    def pids(self) -> list[int]:
        """Process ids of the sessions."""
        return [desk.pid for desk in self.desks]

    async def sit_down(self, route: Route) -> Desk:
        """Open a notebook and prepare it."""
        context = AsyncExitStack()
        notebook = await context.enter_async_context(open_notebook(route))
        seed = self._chance.randrange(1 << 32)
        try:
            pid = await notebook.value(_PREPARE.format(seed=seed))
        except BaseException:
            await context.aclose()
            raise
        return Desk(notebook=notebook, context=context, state=seed, pid=pid)

    async def settle_in(self, num_messages: int) -> None:
        """Send *num_messages* requests and answers through every notebook's queues, several notebooks at a time."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def settle_one(desk: Desk) -> None:
            async with gate:
                for _ in range(0, num_messages, _BATCH):
                    await desk.notebook.chat(_BATCH)

        await asyncio.gather(*map(settle_one, self.desks))

    async def stay_busy(self, num_busy: int, seconds: float, *, reopen: float = 0.0) -> None:
        """Keep *num_busy* desks at work for *seconds*; before a cell its notebook is closed and opened by chance."""
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._work(until, reopen) for _ in range(num_busy)))

    async def echo(self, seconds: float, *, pause: float = 0.05) -> None:
        """Time a trivial cell in one idle notebook after another for *seconds*."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            async with self._idle_desk() as desk:
                reply = await desk.notebook.execute(_ECHO)
            if reply.error is not None:
                self.tally.wrong.append(f"`{_ECHO}` failed: {reply.error}")
            self.tally.round_trips.append(reply.seconds)
            await asyncio.sleep(pause)

    async def _work(self, until: float, reopen: float) -> None:
        while time.monotonic() < until:
            async with self._idle_desk() as desk:
                if self._chance.random() < reopen:
                    await self._reopen(desk)
                kind = self._chance.choice(("train", "move", "pause"))
                self.tally.busy.append(sum(other.is_busy for other in self.desks))
                self.tally.cells[kind] += 1
                try:
                    await getattr(self, f"_{kind}")(desk)
                except (BenchmarkFailed, ValueError) as error:
                    self.tally.wrong.append(f"{kind}: {error}")

    @asynccontextmanager
    async def _idle_desk(self) -> AsyncIterator[Desk]:
        desk = self._chance.choice([desk for desk in self.desks if not desk.is_busy])
        desk.is_busy = True
        try:
            yield desk
        finally:
            desk.is_busy = False

    async def _reopen(self, desk: Desk) -> None:
        await desk.context.aclose()
        new = await self.sit_down(desk.notebook.route)
        desk.notebook, desk.context, desk.state, desk.pid = new.notebook, new.context, new.state, new.pid
        self.tally.reopened += 1

    async def _value(self, desk: Desk, code: str) -> object:
        reply = await desk.notebook.execute(code)
        self.tally.cell_seconds.append(reply.seconds)
        if reply.error is not None:
            raise BenchmarkFailed(reply.error)
        return json.loads(reply.text)

    async def _train(self, desk: Desk) -> None:
        seed = self._chance.choice(_SEEDS)
        digest = str(await self._value(desk, f"print(json.dumps(train({seed}, {_ITERATIONS})))"))
        if self._digests.setdefault(seed, digest) != digest:
            raise BenchmarkFailed(f"the losses with seed {seed} differ from an earlier run's")
        await self._move(desk)

    async def _move(self, desk: Desk) -> None:
        desk.state = _next_state(desk.state)
        found = await self._value(desk, "print(json.dumps(move()))")
        if found != desk.state:
            raise BenchmarkFailed(f"a tensor holds {found} instead of {desk.state}")

    async def _pause(self, desk: Desk) -> None:
        if await self._value(desk, f"time.sleep({_PAUSE}); print(sum(range(1000)))") != 499500:
            raise BenchmarkFailed("plain Python gave something else")


@asynccontextmanager
async def gather(routes: Sequence[Route], chance: random.Random) -> AsyncIterator[Crowd]:
    """Open a notebook on each of *routes*, several at a time; all are gone afterwards."""
    crowd, gate = Crowd(routes, chance), asyncio.Semaphore(_AT_ONCE)

    async def open_one(route: Route) -> None:
        async with gate:
            crowd.desks.append(await crowd.sit_down(route))

    async def close_one(desk: Desk) -> None:
        async with gate:
            await desk.context.aclose()

    try:
        async with asyncio.TaskGroup() as tasks:
            for route in routes:
                tasks.create_task(open_one(route))
        yield crowd
    finally:
        await asyncio.gather(*map(close_one, crowd.desks))
