"""A user at work: a notebook that trains in many short cells, and notices every step that is lost, doubled or wrong.

The notebook is a real Jupyter client with a real relay. It is its own judge: the steps' losses are those of an
undisturbed run, bit by bit, and each is printed exactly once, whatever was killed meanwhile. What may happen to it is
told by the campaign: only who was killed may lose anything.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_core.utils import ensure_event_loop

from sharedkernel.client.relay.sockets import ConnectionInfo
from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import client_key
from tests.client.relay.support import Notebook
from tests.faults.server import PATIENCE, ServerNotebook
from tests.readiness import wait_until_blocking_ready

#: steps of one training; then it starts over
STEPS = 240
#: seconds until a cell is sent again that nobody could run
_RETRY_INTERVAL = 0.2
#: what those are told whose relay starts while the executor is gone, or is stopped
_EXECUTOR_IS_AWAY = ("no executor answers", "does not say which sessions it has")
#: lines of a notebook's story that are kept
_STORY_LINES = 1000
#: most steps of one cell
STEPS_PER_CELL = 6

_SETUP = """\
import torch
torch.set_num_threads(1)
torch.manual_seed(11)
features, targets = torch.randn(64, 16, device="DEVICE"), torch.randn(64, 1, device="DEVICE")
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to("DEVICE")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
ballast = torch.arange(2**20, dtype=torch.float64, device="DEVICE")
losses = []

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        chosen = torch.randint(64, (16,))
        loss = torch.nn.functional.mse_loss(model(features[chosen]), targets[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(len(losses), losses[-1].hex(), flush=True)
"""


def setup(device: str) -> str:
    """Return the cell that makes a training on *device*, as torch calls it."""
    return _SETUP.replace("DEVICE", device)


#: what a session answers that still has everything, or has never had anything
STANDING = (
    "print(len(losses), float(ballast.sum()) == 2**19 * (2**20 - 1), flush=True) "
    "if 'losses' in globals() else print('nothing', flush=True)"
)


@dataclass(slots=True)
class Cell:
    """What one cell did, as far as the client heard."""

    sent: float
    text: str = ""
    #: name and sentence of its error
    error: str = ""
    #: whether it published anything yet
    has_begun: bool = False
    #: None: nobody will tell
    status: str | None = None
    #: its relay ended meanwhile: it was killed, or its session was and could not be started again at once
    lost_relay: bool = False


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a notebook has to say about the campaign."""

    cells: int = 0
    steps: int = 0
    trainings: int = 0
    #: cells whose outcome was not heard, although neither session nor relay was killed
    outcomes_lost: list[str] = field(default_factory=list)
    #: sessions that lost what they had, although they were not killed
    tensors_lost: list[str] = field(default_factory=list)
    #: lines that were wrong, missing or doubled
    wrong: list[str] = field(default_factory=list)
    #: errors that no kill explains
    unexplained: list[str] = field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        """Whether anything was found that must not be."""
        return bool(self.outcomes_lost or self.tensors_lost or self.wrong or self.unexplained)


class Worker(threading.Thread):
    """One notebook at work in a thread of its own, until told to stop.

    Parameters
    ----------
    name
        For people.
    open_notebook
        Makes the client, which is not started yet; again when the user's Jupyter server was killed.
    expected
        Each step's line in an undisturbed run.
    device
        On which it trains, as torch calls it.
    on_reply
        Called with this worker and the time at which a cell was sent, whenever its reply is there.
    pace
        Returns the next cell's steps and the seconds to rest after it.
    patience
        Seconds that a cell may take.
    """

    def __init__(
        self,
        name: str,
        open_notebook: Callable[[str], Notebook | ServerNotebook],
        expected: list[str],
        on_reply: Callable[[Worker, float], None],
        pace: Callable[[], tuple[int, float]],
        device: str = "cpu",
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.notebook = open_notebook(name)
        self.findings = Findings()
        #: sessions of this notebook that were killed on purpose and not yet missed
        self.sessions_killed = 0
        #: the same of its relays
        self.relays_killed = 0
        #: the same of the Jupyter servers that its relay belongs to
        self.servers_killed = 0
        #: the relay may lack something that it needs for its start
        self.is_relay_starved = False
        #: held while a relay or a server is started again, and by who kills something of this notebook
        self.opening = threading.RLock()
        #: what it did and heard lately, each with its time, for whoever looks for a fault
        self.story: deque[str] = deque(maxlen=_STORY_LINES)
        #: what ended this thread, if not :meth:`finish`
        self.failure: BaseException | None = None
        self._expected = expected
        self._open_notebook = open_notebook
        self._on_reply = on_reply
        self._pace = pace
        self._patience = patience
        self._setup = setup(device)
        self._finished = threading.Event()
        #: set once it has stopped, with everything still open, or has failed
        self.rests = threading.Event()
        self._released = threading.Event()
        self._done = 0
        #: whether the session has what a training needs
        self._is_set_up = False
        #: ids of all messages that were published to this notebook
        self._heard: set[str] = set()

    def note(self, line: str) -> None:
        """Add *line* to the story."""
        self.story.append(f"{datetime.now():%H:%M:%S.%f} {line}")

    def finish(self) -> None:
        """Stop after the present cell, and stay."""
        self._finished.set()

    def leave(self) -> None:
        """End the thread; the Jupyter server that it has started ends with it."""
        self._finished.set()
        self._released.set()
        self.join(2 * PATIENCE)

    def run(self) -> None:
        """Train, and look at every line."""
        self._watch()
        try:
            self._begin_training()
            while not self._finished.is_set():
                steps, rest = self._pace()
                self._train(min(steps, STEPS - self._done))
                if self._done >= STEPS:
                    self.findings.trainings += 1
                    self._check_standing(STEPS)
                    self._begin_training()
                self._finished.wait(rest)
            self._check_standing(self._done)
            self.rests.set()
            self._released.wait()
        except BaseException as error:
            self.failure = error
            self.rests.set()
        finally:
            ensure_event_loop().close()  # this thread's, which the client's blocking methods have made

    @property
    def is_hurt(self) -> bool:
        """Whether something of its own was killed that it has not met yet."""
        return bool(self.sessions_killed or self.relays_killed or self.servers_killed)

    @property
    def client_key(self) -> str:
        """The name by which the gateway knows this notebook's place; empty while its relay is being started."""
        path = Path(self.notebook.manager.connection_file)
        try:
            return client_key(path, ConnectionInfo.from_file(path).key)
        except ConfigError:
            return ""

    # --- training -----------------------------------

    def _begin_training(self) -> None:
        self._done = 0
        while (cell := self._run(self._setup)).status != "ok":
            self._explain(cell)
        self._is_set_up = True
        self._done = 0

    def _train(self, steps: int) -> None:
        cell = self._run(f"train({steps})")
        self.findings.cells += 1
        expected = self._expected[self._done : self._done + steps]
        lines = cell.text.splitlines()
        if cell.status == "ok":
            if lines != expected:
                self.findings.wrong.append(f"{self.name}: printed {lines}, expected {expected}")
                self.note(self.findings.wrong[-1])
            self._done += steps
            self.findings.steps += steps
        else:
            self._explain(cell)
            self._find_out(steps)

    def _find_out(self, steps: int) -> None:
        """Learn where a session stands whose last cell was not heard to its end."""
        standing = self._standing()
        if standing == "nothing":
            self._is_set_up = False
            if self.sessions_killed:
                self.sessions_killed -= 1
            else:
                self.findings.tensors_lost.append(f"{self.name}: a new session after {self._done} steps")
            self._begin_training()
            return
        count, ballast = standing.split()
        if ballast != "True":
            self.findings.tensors_lost.append(f"{self.name}: the ballast changed")
        if int(count) not in range(self._done, self._done + steps + 1):
            self.findings.wrong.append(f"{self.name}: {count} steps, after {self._done} and a cell of {steps}")
        self._done = int(count)

    def _check_standing(self, done: int) -> None:
        standing = self._standing()
        if standing == "nothing" and self.sessions_killed:
            self._is_set_up = False
            self.sessions_killed -= 1
        elif standing != f"{done} True":
            self.findings.tensors_lost.append(f"{self.name}: stands at {standing}, expected {done}")

    def _standing(self) -> str:
        while (cell := self._run(STANDING)).status != "ok" or not cell.text:
            self._explain(cell)
        return self._last_line(cell)

    @staticmethod
    def _last_line(cell: Cell) -> str:
        """Return what the cell itself printed last; a new session says before it that an earlier one is there."""
        return next(reversed(cell.text.split("\n")[:-1]), "")

    def _explain(self, cell: Cell) -> None:
        """Take note of a cell that failed: a kill explains it or does not."""
        name = cell.error.partition(":")[0]
        if name == "SharedGPUOutcomeLost" or (cell.status is None and not cell.lost_relay):
            self.findings.outcomes_lost.append(f"{self.name}: {cell.error or 'no answer'}")
        elif name == "NameError" or name.startswith("SharedGPU"):
            is_away = name == "SharedGPUUnreachable" or any(words in cell.error for words in _EXECUTOR_IS_AWAY)
            # The next session of a notebook that has nothing yet, while the executor may start no process.
            is_start = "a session did not start" in cell.error and not self._is_set_up
            if not self.sessions_killed and not is_away and not is_start:
                self.findings.unexplained.append(f"{self.name}: {cell.error}")
            time.sleep(_RETRY_INTERVAL)
        elif cell.status is not None:
            what = cell.error or f"a cell that ended as {cell.status!r} and printed {cell.text!r}"
            self.findings.unexplained.append(f"{self.name}: {what}")

    # --- one cell -----------------------------------

    def _run(self, code: str) -> Cell:
        """Run a cell; where the relay dies meanwhile, start it again, as a Jupyter server does."""
        cell = Cell(sent=time.monotonic())
        message_id = self.notebook.client.execute(code)
        deadline = cell.sent + self._patience
        idle = False
        while cell.status is None or not idle:
            try:
                message = self.notebook.client.get_iopub_msg(timeout=0.2)
            except Empty:
                message = None
            if message is not None:
                self._check_new(message)
            if message is not None and message["content"].get("execution_state") == "restarting":
                # A session that dies between a cell's reply and its end cannot tell of the end.
                idle = idle or cell.has_begun
            if message is not None and message["parent_header"].get("msg_id") == message_id:
                idle = self._hear(cell, message) or idle
            if cell.status is None:
                cell.status = self._reply(message_id)
            if not self.notebook.manager.is_alive():
                was_killed = bool(self.relays_killed or self.sessions_killed)
                self.note(f"{code[:40]!r}: {cell.status}, the relay ended (killed: {was_killed})")
                self._start_relay_again()
                # What a relay that was killed had not passed on is gone, whatever it had.
                answered = cell.status is not None and not was_killed
                return cell if answered else Cell(cell.sent, lost_relay=was_killed)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: no answer within {self._patience:g} s to {code[:40]!r}: {cell}")
        self.note(f"{code[:40]!r}: {cell.status} {cell.error} {cell.text[-40:]!r}")
        if cell.status == "ok":
            self._on_reply(self, cell.sent)
        return cell

    def _check_new(self, message: dict[str, Any]) -> None:
        # A gateway counts its own messages anew for each connection, so the id alone does not tell them apart.
        name = f"{message['msg_id']} {message['header']['date']}"
        if name in self._heard:
            self.findings.wrong.append(f"{self.name}: came twice: {message['msg_type']} {message['content']}")
            self.note(self.findings.wrong[-1])
        self._heard.add(name)

    def _hear(self, cell: Cell, message: dict[str, Any]) -> bool:
        """Take note of what a cell published; True when it is idle."""
        content = message["content"]
        cell.has_begun = True
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            cell.text += content["text"]
        elif message["msg_type"] == "error":
            cell.error = f"{content['ename']}: {content['evalue']}"
        return message["msg_type"] == "status" and content["execution_state"] == "idle"

    def _reply(self, message_id: str) -> str | None:
        try:
            while True:
                reply = self.notebook.client.get_shell_msg(timeout=0)
                self._check_new(reply)
                if reply["parent_header"].get("msg_id") == message_id:
                    return str(reply["content"]["status"])
        except Empty:
            return None

    def _watch(self) -> None:
        """Have the client show what comes twice, which it refuses by itself."""
        self.notebook.client.session.digest_history_size = 0

    def _start_relay_again(self) -> None:
        with self.opening:
            self.relays_killed = 0
            if self.servers_killed:
                self._open_again()
                return
            while True:
                was_starved, self.is_relay_starved = self.is_relay_starved, False
                self.notebook.manager.restart_kernel(now=True)
                try:
                    self._wait_for_relay()
                    break
                except RuntimeError:  # it ended at its start
                    if not (was_starved or self.is_relay_starved):
                        raise
                    self.note("the relay did not start")

    def _wait_for_relay(self) -> None:
        wait_until_blocking_ready(self.notebook.client, PATIENCE, self.notebook.manager.is_alive, self._check_new)

    def _open_again(self) -> None:
        """Open the notebook with another Jupyter server, whose kernel begins clean, and bring the session back."""
        self.notebook.__exit__()
        self.notebook = self._open_notebook(self.name)
        self.notebook.__enter__()
        self._watch()
        self.servers_killed = 0
        self._heard.clear()  # by another client
        if not self._is_set_up:
            return
        deadline = time.monotonic() + PATIENCE
        while self._last_line(self._run(STANDING)) in ("", "nothing"):
            if time.monotonic() > deadline:
                self.findings.tensors_lost.append(f"{self.name}: its session was not brought back")
                return
            self._run("%shared attach")
            time.sleep(0.2)


def undisturbed(notebook: Notebook, device: str) -> list[str]:
    """Return each step's line when nothing is killed, on *device*, as torch calls it."""
    notebook.run(setup(device))
    return notebook.run(f"train({STEPS})").text().splitlines()
