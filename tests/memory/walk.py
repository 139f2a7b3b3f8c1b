"""Notebooks of two users that do what a test draws, and know what they have made and keep.

Everything is real: gateway, executor, sessions, clients. Nothing here reads a figure of the product to find out what
another figure of it should be: what a notebook keeps is what its cells have made, and the system says what its process
holds. Run as a program it walks at random for as long as it is told::

    python -m tests.memory.walk --walks 500 --busy 4
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.stack.client import Notebook, Reply, Route
from benchmarks.stack.results import BenchmarkFailed
from sharedkernel.local_stack import LocalStack
from sharedkernel.status.document import SessionStatus, StatusDocument
from sharedkernel.units import format_bytes
from tests.processes import busy

MIB = 1 << 20
#: seconds within which figures have to be true once all is at rest: the product promises two, a busy machine takes more
PATIENCE = 20.0
#: by how much a figure may differ from what was made: a part of it, or bytes
TOLERANCE, LEAST_TOLERANCE = 0.03, 16 * MIB
#: bytes by which a session on the host may exceed its quota before an allocation fails, see `executor/devices/host.py`
SLACK = 64 * MIB
#: part of what is left that must be usable
USABLE = 0.95
USERS = ("ada", "bob")
#: the user of each notebook
OWNERS = ("ada", "ada", "bob", "bob")
SIZES = (8, 48, 160, 400, 650, 900, 1100)

_SETUP = """\
import gc, time, torch
from sharedkernel import shelf
torch.set_num_threads(1)
device = {device!r}
def make(size): return torch.ones(size // 4, device=device)
def work():  # one operation of seconds: the session yields when it ends, and its cell then ends without a grant
    torch.ones(1200, 1200, device=device).matrix_power(0xFFFF)
"""
#: keeps a model of 1000 x 1000 x 6 and its optimizer's two moments
_TRAIN = """\
model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000, bias=False, device=device) for _ in range(6)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    optimizer.zero_grad()
    model(torch.ones(256, 1000, device=device)).square().mean().backward()
    optimizer.step()
optimizer.zero_grad()
"""
TRAINED = 3 * 6 * 4_000_000


class NamedNotebook(Notebook):
    """A notebook with a path of its own: without one nobody could have its session back, and it would not linger."""

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if (method, path) == ("POST", "/api/kernels"):
            body = {**(body or {}), "path": f"{uuid.uuid4().hex}.ipynb"}
        return await super()._request(method, path, body)


@dataclass
class Kept:
    """What one notebook has made and keeps, by name, in bytes."""

    notebook: Notebook
    user: str
    tensors: dict[str, int] = field(default_factory=dict)
    number: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.tensors.values())

    def name(self) -> str:
        self.number += 1
        return f"t{self.number}"


class Untrue(AssertionError):
    """A figure that is not what was made, or a request that should have ended otherwise."""


class Walk:
    """One stack, and notebooks on it one walk after another.

    Parameters
    ----------
    device
        What the executor serves, such as ``cuda:0``.
    capacity, quota
        Bytes: of the device, and of each user.
    """

    def __init__(self, *, device: str = "host", capacity: int = 2048 * MIB, quota: int = 1024 * MIB) -> None:
        self.capacity, self.quota, self._torch_device = capacity, quota, "cpu" if device == "host" else "cuda"
        self.stack = LocalStack(
            users=USERS,
            devices=[device],
            capacity=str(capacity),
            quotas={"default": {"memory": quota, "offload_after": 1, "linger": 600}},
        )
        if device != "host":
            self.stack.executor.arguments += ["--reserve", "32MiB"]
        self._runner = asyncio.Runner()
        self.notebooks: list[Kept] = []
        #: bytes on each user's shelf
        self.shelves: dict[str, dict[str, int]] = {user: {} for user in USERS}
        #: what was done, for a failure's text
        self.story: list[str] = []

    def __enter__(self) -> Self:
        self.stack.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self._runner.close()
            self.stack.stop()

    # --- notebooks ----------------------------------------------------------------------------------------------------

    def begin(self, owners: tuple[str, ...] = OWNERS) -> None:
        """Open a notebook for each of *owners*, with nothing in it; what an earlier walk has left is ended."""
        self.end()
        self.story.clear()
        self.shelves = {user: {} for user in USERS}
        for owner in owners:
            self.notebooks.append(self._open(owner))

    def _open(self, owner: str) -> Kept:
        route = Route(name="gateway", url=self.stack.gateway_url, token=self.stack.token(owner), kernel="shared-gpu")
        notebook = NamedNotebook(route, PATIENCE * 10)
        self._runner.run(notebook.start())
        kept = Kept(notebook, owner)
        self.run(kept, _SETUP.format(device=self._torch_device))
        return kept

    def end(self) -> None:
        """End all notebooks for good, and clear the shelves."""
        notebooks, self.notebooks = self.notebooks, []
        owners = {kept.user: kept for kept in notebooks}
        errors = [self.execute(kept, "for name in list(shelf): del shelf[name]").error for kept in owners.values()]
        for kept in notebooks:
            self._runner.run(kept.notebook.close())
        for session in self.stack.status().sessions:
            self._call("DELETE", session.user, f"/api/kernels/{session.kernel_id}?linger=0")
        if any(errors):
            raise Untrue(f"a shelf could not be cleared: {errors}")

    def _call(self, method: str, user: str, path: str) -> None:
        headers = {"Authorization": f"token {self.stack.token(user)}"}
        request = urllib.request.Request(self.stack.gateway_url + path, method=method, headers=headers)
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=PATIENCE):
            pass

    def execute(self, kept: Kept, code: str) -> Reply:
        """Run a cell to its end, whatever it is."""
        self.story.append(f"{kept.user}{self.notebooks.index(kept) if kept in self.notebooks else ''}: {code.strip()}")
        return self._runner.run(kept.notebook.execute(code))

    def run(self, kept: Kept, code: str) -> str:
        """Run a cell that must end well."""
        reply = self.execute(kept, code)
        if reply.error is not None:
            raise Untrue(f"{reply.error}\n{self.account()}")
        return reply.text

    # --- what they do -------------------------------------------------------------------------------------------------

    def has(self, user: str) -> int:
        """Return what *user* has made and keeps."""
        own = sum(kept.bytes for kept in self.notebooks if kept.user == user)
        return own + sum(self.shelves[user].values())

    def away(self, user: str) -> int:
        """Return how much of what *user* keeps is not on the device."""
        sessions = self.stack.status().sessions
        return sum(session.offloaded_bytes for session in sessions if session.user == user and not session.lingering)

    def request(self, which: int, size: int, *, keeps: bool, way: str = "plain") -> None:
        """Make a tensor of *size* bytes, and judge what comes of it by what its user and all have.

        Parameters
        ----------
        which
            The notebook's number.
        size
            Bytes.
        keeps
            Whether it stays.
        way
            ``plain``, ``slow``: followed by an operation of two seconds, ``view``: only a view
            of it stays, ``function``: made and freed in a function that fails.
        """
        kept = self.notebooks[which]
        name = kept.name()
        code = {
            "plain": f"{name} = make({size})",
            "slow": f"{name} = make({size})\nwork()",
            "view": f"{name} = make({size})[:10]",
            "function": f"{name} = make({size})\ndel {name}\n1 / 0",
        }[way]
        if not keeps and way != "function":
            code += f"\ndel {name}"
        has, everybody = self.has(kept.user), sum(map(self.has, USERS))
        frameworks = sum(session.framework_bytes for session in self.stack.status().sessions)
        own = kept.bytes
        is_usable = has + size <= USABLE * self.quota
        # The others' idle memory can be moved away; a notebook's own cannot while it runs.
        is_usable &= own + size + frameworks <= USABLE * self.capacity
        away = self.away(kept.user)
        reply = self.execute(kept, code)
        error = reply.error or ""
        if way == "function" and error.startswith("ZeroDivisionError"):
            error = ""
        if error and not error.startswith("OutOfMemoryError"):
            raise Untrue(f"an error of another kind: {error}\n{self.account()}")
        if error and is_usable:
            raise Untrue(
                f"{kept.user} has {format_bytes(has)} of {format_bytes(self.quota)} and all have "
                f"{format_bytes(everybody)} of {format_bytes(self.capacity)}; {format_bytes(size)} more were refused:\n"
                f"{error}\n{self.account()}"
            )
        # What is away does not count, whether it was so before or others' requests have moved it meanwhile.
        if not error and has + size - max(away, self.away(kept.user)) > self.quota + SLACK:
            raise Untrue(f"{format_bytes(size)} beyond the quota were given\n{self.account()}")
        if error and not re.search(r"\d (KiB|MiB|GiB|B)\b", error):
            raise Untrue(f"no figures: {error}\n{self.account()}")
        if keeps and (not error or "has ended" in error):
            kept.tensors[name] = size
        elif error:
            self.run(kept, f"if {name!r} in globals(): del {name}")

    def free(self, which: int, pick: int) -> None:
        """Delete one of a notebook's tensors, if it has any."""
        kept = self.notebooks[which]
        if kept.tensors:
            name = sorted(kept.tensors)[pick % len(kept.tensors)]
            self.run(kept, f"del {name}" if name != "model" else "del model, optimizer")
            del kept.tensors[name]

    def replace(self, which: int, pick: int) -> None:
        """Make one of a notebook's tensors anew, half as large: the old one goes once the new one is there."""
        kept = self.notebooks[which]
        names = sorted(name for name in kept.tensors if name != "model")
        if names:
            name = names[pick % len(names)]
            size = kept.tensors[name] // 2
            if self.has(kept.user) + size <= USABLE * self.quota:
                self.run(kept, f"{name} = make({size})")
                kept.tensors[name] = size

    def train(self, which: int) -> None:
        """Train a small model, which stays, if there is room for it."""
        kept = self.notebooks[which]
        if self.has(kept.user) - kept.tensors.get("model", 0) + 3 * TRAINED <= USABLE * self.quota:
            self.run(kept, "model = optimizer = None\n" + _TRAIN)
            kept.tensors["model"] = TRAINED

    def interrupt(self, which: int, size: int) -> None:
        """Interrupt a cell that makes and frees *size* bytes for ever, if there is room for that."""
        kept = self.notebooks[which]
        if self.has(kept.user) + size > USABLE * self.quota:
            return
        self.story.append(f"{kept.user}: interrupted with {format_bytes(size)}")

        async def interrupted() -> None:
            async with kept.notebook.endless(f"while True: float(make({size}).sum())"):
                await asyncio.sleep(0.3)

        try:
            self._runner.run(interrupted())
        except BenchmarkFailed as error:
            raise Untrue(f"{error}\n{self.account()}") from None

    def shelve(self, which: int, size: int) -> None:
        """Put *size* bytes on the shelf, if there is room for them and their copy."""
        kept = self.notebooks[which]
        if self.has(kept.user) + 2 * size <= USABLE * self.quota and size < 200 * MIB:
            name = kept.name()
            self.run(kept, f"shelf[{name!r}] = make({size})")
            self.shelves[kept.user][name] = size

    def offload(self, which: int) -> None:
        """Have an idle notebook's memory moved away and back."""
        kept = self.notebooks[which]
        self.story.append(f"{kept.user}: offload")
        self._call("POST", kept.user, f"/sharedkernel/api/sessions/{kept.notebook.kernel_id}/offload")
        self.run(kept, "1")

    def shut_down(self, which: int) -> None:
        """Shut a notebook down, as its page does, and open another one in its place."""
        kept = self.notebooks[which]
        self.story.append(f"{kept.user}: shut down with {format_bytes(kept.bytes)}")
        self._runner.run(kept.notebook.close())
        self.notebooks[which] = self._open(kept.user)

    # --- whether it is true -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare all figures with what was made, and with what the system says; everything is at rest."""
        deadline = time.monotonic() + PATIENCE
        while problem := self._problem(self.stack.status()):
            if time.monotonic() > deadline:
                raise Untrue(f"{problem}\n{self.account()}")
            time.sleep(0.05)

    def _problem(self, status: StatusDocument) -> str | None:
        """Return what is wrong with *status*; None: nothing."""
        sessions = {session.kernel_id: session for session in status.sessions}
        for number, kept in enumerate(self.notebooks):
            session = sessions[kept.notebook.kernel_id]
            if _differs(session.persistent_bytes + session.offloaded_bytes, kept.bytes):
                return f"notebook {number} made {format_bytes(kept.bytes)}: {_figures(session)}"
            if max(session.ephemeral_bytes or 0, session.live_bytes) > MIB:
                return f"notebook {number} is at rest: {_figures(session)}"
        for user in status.users:
            own = [session for session in status.sessions if session.user == user.name]
            if _differs(user.shelf_bytes, sum(self.shelves[user.name].values())):
                return f"the shelf of {user.name} has {format_bytes(user.shelf_bytes)}"
            counted = user.shelf_bytes + sum(session.persistent_bytes for session in own if not session.lingering)
            if user.quota_used_bytes is None or abs(user.quota_used_bytes - counted) > MIB:
                return f"the quota of {user.name} counts {user.quota_used_bytes}, and {counted} are kept"
        for session in status.sessions:
            if session.lingering and session.persistent_bytes > LEAST_TOLERANCE:
                return f"a session that was shut down is there: {_figures(session)}"
        total = sum(
            user.persistent_bytes + user.ephemeral_bytes + user.framework_bytes + user.shelf_bytes
            for user in status.users
        )
        if abs(total - status.device.used_bytes) > MIB:
            return f"all users have {format_bytes(total)}, the device {format_bytes(status.device.used_bytes)}"
        return None

    def check_outside(self) -> None:
        """Compare a notebook's figures with what the system, or torch, says its process holds."""
        for number, kept in enumerate(self.notebooks):
            if self._torch_device == "cuda":
                holds = int(self.run(kept, "print(torch.cuda.memory_allocated())").split()[-1])
                if _differs(holds, kept.bytes):
                    raise Untrue(f"notebook {number} made {kept.bytes}, and torch has {holds}\n{self.account()}")
                continue
            pid = int(self.run(kept, "import os; print(os.getpid())").split()[-1])
            deadline = time.monotonic() + PATIENCE
            while True:
                session = next(s for s in self.stack.status().sessions if s.kernel_id == kept.notebook.kernel_id)
                holds, shown = private_bytes(pid), session.persistent_bytes + session.framework_bytes
                if not _differs(holds, shown, least=2 * LEAST_TOLERANCE):
                    break
                if time.monotonic() > deadline:
                    raise Untrue(
                        f"the process of notebook {number} holds {format_bytes(holds)}, its figures come to "
                        f"{format_bytes(shown)}: {_figures(session)}\n{self.account()}"
                    )
                time.sleep(1.0)
                self.run(kept, "pass")  # framework memory is measured when nothing runs, and reported by the next cell

    def account(self) -> str:
        """Return what was done, and all figures."""
        status = self.stack.status()
        lines = [*self.story[-40:], f"device: {format_bytes(status.device.used_bytes)}"]
        lines += [f"{session.user} {session.state} {_figures(session)}" for session in status.sessions]
        return "\n".join(lines)


def private_bytes(pid: int) -> int:
    """Return the memory of a process that is its own, as the system counts it, without what is the shelf's."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    shared = re.search(r"^RssShmem:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert shared is not None
    private = sum(int(kib) for kib in re.findall(r"^Private_\w+:\s+(\d+)", rollup, re.MULTILINE))
    return 1024 * (private - int(shared[1]))


def _differs(figure: int, truth: int, *, least: int = LEAST_TOLERANCE) -> bool:
    return abs(figure - truth) > max(least, TOLERANCE * truth)


def _figures(session: SessionStatus) -> str:
    kinds: dict[str, Any] = {
        "persistent": session.persistent_bytes,
        "ephemeral": session.ephemeral_bytes or 0,
        "framework": session.framework_bytes,
        "away": session.offloaded_bytes,
    }
    return ", ".join(f"{format_bytes(size)} {kind}" for kind, size in kinds.items()) + session.lingering * ", lingers"


#: what a step does, of a walk, a notebook's number, bytes and any number
STEPS: dict[str, Callable[[Walk, int, int, int], None]] = {
    "keep": lambda walk, which, size, pick: walk.request(which, size, keeps=True),
    "temporary": lambda walk, which, size, pick: walk.request(which, size, keeps=False),
    "slow": lambda walk, which, size, pick: walk.request(which, size, keeps=True, way="slow"),
    "slow temporary": lambda walk, which, size, pick: walk.request(which, size, keeps=False, way="slow"),
    "view": lambda walk, which, size, pick: walk.request(which, size, keeps=True, way="view"),
    "error": lambda walk, which, size, pick: walk.request(which, size, keeps=False, way="function"),
    "free": lambda walk, which, size, pick: walk.free(which, pick),
    "replace": lambda walk, which, size, pick: walk.replace(which, pick),
    "train": lambda walk, which, size, pick: walk.train(which),
    "interrupt": lambda walk, which, size, pick: walk.interrupt(which, min(size, 64 * MIB)),
    "shelve": lambda walk, which, size, pick: walk.shelve(which, size),
    "offload": lambda walk, which, size, pick: walk.offload(which),
    "shut down": lambda walk, which, size, pick: walk.shut_down(which),
}


def main() -> None:
    """Walk at random, and print how often what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--device", default="host")
    parser.add_argument("--capacity-mib", type=int, default=2048)
    parser.add_argument("--quota-mib", type=int, default=1024)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)  # noqa: T201
    rng, done = random.Random(options.seed), dict.fromkeys(STEPS, 0)
    began, failures = time.monotonic(), 0
    scale = options.quota_mib / 1024
    sizes = Walk(device=options.device, capacity=options.capacity_mib * MIB, quota=options.quota_mib * MIB)
    with busy(options.busy), sizes as walk:
        for number in range(options.walks):
            try:
                walk.begin()
                for _ in range(options.steps):
                    name = rng.choice(list(STEPS))
                    STEPS[name](walk, rng.randrange(4), int(rng.choice(SIZES) * scale) * MIB, rng.randrange(100))
                    done[name] += 1
                    walk.check()
                walk.check_outside()
            except Untrue as error:
                failures += 1
                print(f"walk {number}: {error}", flush=True)  # noqa: T201
    print(f"{options.walks} walks in {time.monotonic() - began:.0f} s, {failures} untrue: {done}")  # noqa: T201
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
