"""A real session process under an executor of the test's own, which says and withholds what the test wants."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import resource
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from jupyter_client.blocking.client import BlockingKernelClient

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Page, Word
from tests.printed import printed
from tests.readiness import wait_until_blocking_ready
from tests.session.forking import SHOWS_PROGRAMS, Forks

#: seconds that anything in these tests may take, on a busy machine
PATIENCE = 60.0
GIB = 1 << 30

#: lines of torch's logs and of Kineto's, which have times in them
_LOGGED = re.compile(r"USDT:|[WI]\d{4} ")
_CELL = re.compile(r"Cell In\[\d+\]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

M = TypeVar("M", bound=protocol.Message)

#: returns the warm parent of this process's sessions, from the first one on
warm_parent = functools.cache(Forks)


class SessionUnderTest:
    """One session's process; by itself it is granted the device at once, and not restored.

    Parameters
    ----------
    shows_programs
        Whether cells show what programs and C code print, as outside of tests.
    """

    def __init__(self, *, shows_programs: bool = False) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="sk-")
        path = Path(self._directory.name)
        if shows_programs:
            (path / SHOWS_PROGRAMS).touch()
        self.offload_directory = path / "offload"
        #: everything heard, oldest first
        self.heard: list[Any] = []
        self._news = threading.Condition()
        self._connection: socket.socket | None = None
        #: called with each :class:`DeviceWanted`, to say what the executor does
        self.on_wanted: Callable[[protocol.DeviceWantedReport], None] = self.grant
        self.on_withdrawn: Callable[[], None] = self.see_withdrawal
        #: whether the executor greets the session that comes to it
        self.is_there = True
        self.page = Page.create("test")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path / "executor.sock"))
        self._listener.listen()
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()
        self._log = path / "session.log"
        self.process = warm_parent().fork(path, self.page.descriptor)
        hello = self.wait_for(protocol.SessionHello)
        assign = protocol.Assign(session="s", user="ada", notebook=None, cwd="/", env={})
        self.say(assign)
        self.wait_for(protocol.Assigned)
        self.client = BlockingKernelClient()
        self.client.load_connection_info({**hello.connection, "key": hello.connection["key"].encode()})
        self.client.start_channels(hb=False)  # a heartbeat that is late on a busy machine is no death
        wait_until_blocking_ready(self.client, PATIENCE)
        self.run("import torch")

    # --- the executor's side ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            decoder = protocol.Decoder(protocol.ToExecutor)
            self._connection = connection
            while data := _receive(connection):
                for message in decoder.feed(data):
                    with contextlib.suppress(OSError):  # the test has hung up before the answer
                        self._hear(message)

    def _hear(self, message: Any) -> None:
        if isinstance(message, protocol.SessionHello) and self.is_there:
            device = protocol.Device(name="test", kind="host", capacity_bytes=64 * GIB, reserve_bytes=0)
            self.say(protocol.Welcome(version=protocol.PROTOCOL_VERSION, device=device))
        elif isinstance(message, protocol.GrantReleasedReport):
            self.page.words[Word.PREEMPT] = 0
        with self._news:
            self.heard.append(message)
            self._news.notify_all()
        if isinstance(message, protocol.DeviceWantedReport):
            self.on_wanted(message)
        elif isinstance(message, protocol.DeviceWantWithdrawnReport):
            self.on_withdrawn()

    def say(self, message: protocol.Message) -> None:
        """Send *message* to the session."""
        assert self._connection is not None
        self._connection.sendall(protocol.encode(message))

    def grant(self, wanted: protocol.DeviceWantedReport | None = None) -> None:
        """Give the session the device."""
        self.say(protocol.Granted())

    def see_withdrawal(self) -> None:
        """Answer that the session wants the device no more."""
        self.say(protocol.WithdrawalSeen())

    def decide_growth(self, answer: Callable[[protocol.DeviceWantedReport], None]) -> None:
        """Grant at once all but more memory, for which *answer* is called from now on."""
        self.on_wanted = lambda wanted: answer(wanted) if wanted.growth else self.grant()

    def preempt_at_once(self) -> None:
        """Want each grant back as soon as it is given."""

        def answer(wanted: protocol.DeviceWantedReport) -> None:
            self.page.words[Word.PREEMPT] = 1
            self.grant()

        self.on_wanted = answer

    def wait_for(self, kind: type[M], since: int = 0, where: Callable[[M], bool] = lambda message: True) -> M:
        """Return the first message of *kind* heard as number *since* or later for which *where* holds."""
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while True:
                for message in self.heard[since:]:
                    if isinstance(message, kind) and where(message):
                        return message
                left = deadline - time.monotonic()
                assert left > 0, f"no {kind.__name__}; heard {self.heard[since:]}\n{self.log()}"
                self._news.wait(left)

    def kinds(self, since: int) -> list[str]:
        """Return the names of the messages heard from number *since* on."""
        with self._news:
            return [str(message.__struct_config__.tag) for message in self.heard[since:]]

    @property
    def mark(self) -> int:
        """How many messages were heard so far."""
        return len(self.heard)

    def hang_up(self) -> None:
        """Go away as an executor does that crashed; the session finds the next one at once."""
        assert self._connection is not None
        self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def limit(self, limit_bytes: int, *, quota: int = 64 * GIB, slack: int = 64 << 20) -> None:
        """Let the session use *limit_bytes* in all, and enforce it with some *slack*."""
        hello = self.wait_for(protocol.SessionHello)
        wants = [message.data_bytes for message in self.heard if isinstance(message, protocol.DeviceWantedReport)]
        data = (wants or [hello.data_bytes])[-1]
        soft = data + limit_bytes + slack
        resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (soft, resource.RLIM_INFINITY))
        self.say(
            protocol.Allowance(limit_bytes=limit_bytes, quota_bytes=quota, others_bytes=0, capacity_bytes=64 * GIB)
        )

    # --- the user's side ----------------------------------------------------------------------------------------------

    def run(self, code: str, **options: Any) -> dict[str, Any]:
        """Run a cell to its end; return its reply's content, with what it printed and showed."""
        return self.reply(self.client.execute(code, **options))

    def reply(self, request: str) -> dict[str, Any]:
        """Return the content of the reply to *request*, as :func:`reply_of` does."""
        return reply_of(self.client, request)

    def request(self, kind: str, content: dict[str, Any], subshell: str | None = None) -> str:
        """Send a request of the shell channel, or of a subshell's; return its id."""
        message = self.client.session.msg(kind, content)
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def control(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send a request of the control channel; return its reply."""
        self.client.control_channel.send(self.client.session.msg(kind, content))
        reply: dict[str, Any] = self.client.get_control_msg(timeout=PATIENCE)
        return reply

    def interrupt(self) -> None:
        """Interrupt as a Jupyter server does."""
        os.kill(self.process.pid, signal.SIGINT)

    def offload(self) -> protocol.OffloadedReport:
        """Have the session offload."""
        since = self.mark
        self.say(protocol.OffloadCommand())
        return self.wait_for(protocol.OffloadedReport, since)

    def give_way(self, code: str) -> tuple[str, protocol.OffloadedReport]:
        """Execute a cell, and have it move out where it wants the device; return its request and what it reports."""
        since = self.mark
        self.on_wanted = lambda wanted: None
        request = self.client.execute(code)
        self.wait_for(protocol.DeviceWantedReport, since)
        self.on_wanted = self.grant
        self.say(protocol.OffloadCommand())
        return request, self.wait_for(protocol.OffloadedReport, since)

    def open(self, code: str) -> tuple[str, int]:
        """Execute a cell; once it is opened, return its request, and what :attr:`mark` was before."""
        since = self.mark
        request = self.client.execute(code)
        self.wait_for(protocol.CellOpenedReport, since)
        return request, since

    def until_printed(self, text: str) -> None:
        """Return once a cell prints *text*: an interrupt before its first line would interrupt nothing."""
        while text not in self.client.get_iopub_msg(timeout=PATIENCE)["content"].get("text", ""):
            pass

    def restore(self) -> None:
        """Give the session room for what is away, and wait until it is back."""
        since = self.mark
        self.say(protocol.RestoreCommand())
        self.wait_for(protocol.RestoredReport, since)

    def reset(self) -> None:
        """Have the executor give all again, and forget all names but torch."""
        self.on_wanted = self.grant
        self.limit(64 * GIB)
        self.run("%reset -f\nimport torch")

    def run_restored(self, code: str) -> dict[str, Any]:
        """Run a cell that is given room for what is away, if anything is."""
        request, _ = self.open(code)
        self.say(protocol.RestoreCommand())
        return self.reply(request)

    def log(self) -> str:
        """Return what the session logged."""
        return self._log.read_text()

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.stop_channels()
        self.client.context.term()
        self.process.kill()
        for end in (self._listener, self._connection):
            with contextlib.suppress(OSError):
                if end is not None:
                    end.shutdown(socket.SHUT_RDWR)
        self._server.join(PATIENCE)  # what was sent last is heard, and looks at the page
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
        self._directory.cleanup()
        self.page.close()


def wait_until(is_so: Callable[[], object], told: Callable[[], object] = lambda: None) -> None:
    """Return once *is_so*; a failure's text is what *told* returns."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, told()
        time.sleep(0.01)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def reply_of(client: BlockingKernelClient, request: str) -> dict[str, Any]:
    """Return the content of the reply to *request*, with what the cell printed (`text`) and showed (`shown`).

    Names of errors that clients heard of are its `errors`.
    """
    deadline = time.monotonic() + PATIENCE
    texts: list[str] = []
    shown: list[str] = []
    errors: list[str] = []
    while True:
        message = client.get_iopub_msg(timeout=deadline - time.monotonic())
        if message["parent_header"].get("msg_id") != request:
            continue
        content = message["content"]
        match message["msg_type"]:
            case "stream":
                texts.append(printed(content))
            case "display_data" | "update_display_data":
                shown.append(content["data"]["text/plain"])
            case "error":
                errors.append(content["ename"])
            case "status" if content["execution_state"] == "idle":
                break
    while True:
        message = client.get_shell_msg(timeout=deadline - time.monotonic())
        if message["parent_header"].get("msg_id") == request:
            return {**message["content"], "text": "".join(texts), "shown": shown, "errors": errors}


def run_on_both(session: SessionUnderTest, stock: BlockingKernelClient, code: str) -> tuple[Any, Any]:
    """Run a cell here and there; return status, printed lines and traceback of both, without what is never the same."""
    return _comparable(session.run(code)), _comparable(reply_of(stock, stock.execute(code)))


def _comparable(reply: dict[str, Any]) -> tuple[str, list[str], str]:
    lines = [line for line in reply["text"].splitlines() if not _LOGGED.match(line)]
    trace = _COLOURS.sub("", "\n".join(reply.get("traceback", [])))
    return reply["status"], lines, _CELL.sub("Cell In[N]", trace)
