"""The warm parent: a process that has imported everything a notebook needs, and forks sessions.

It is single-threaded, runs no event loop, has no zmq context and touches no device, so a fork of it is a clean kernel
in tens of milliseconds. It outlives the executor: sessions are its children, so only it can tell how they ended, and
it keeps each ending until an executor has recorded it. An executor of other code has it retire: it then forks no more,
and ends with its last session. Otherwise it ends when its executor says so, or when there has been neither an executor
nor a session for :data:`PATIENCE` seconds. Programs that an executor has stopped run again when there has been none for
:data:`_STOPPED_PATIENCE` seconds.

Run as ``python -m sharedkernel.executor.supervision.warm_parent SOCKET EXECUTOR_SOCKET STAMP`` with a scrubbed
environment; the stamp is for executors to read (`environments.py`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import psutil

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError
from sharedkernel.executor.processes.programs import resume_recorded
from sharedkernel.ipc.seqpacket import PEER_PATIENCE, PacketSocket, accept_own, listen
from sharedkernel.paths import RETIRED_SOCKETS, STOPPED_DIRECTORY
from sharedkernel.system import processes

#: what sessions share: their start, first cells and first training steps then import nothing
PRELOAD = (
    "IPython.core.completer", "IPython.core.completerlib", "IPython.core.debugger", "IPython.core.history",
    "IPython.core.logger", "IPython.core.oinspect", "IPython.extensions.storemagic", "ipykernel.debugger",
    "ipykernel.ipkernel", "ipykernel.zmqshell", "ipywidgets", "jedi", "numpy", "sqlite3", "torch", "torch._dynamo",
    "torch.utils.data", "tornado.platform.asyncio", "sharedkernel.session.kernel.app", "sharedkernel.widgets",
)  # fmt: skip
#: seconds for which it waits for an executor while there is nothing to keep for one
PATIENCE = 600.0
#: seconds without an executor from which programs run that one has stopped
_STOPPED_PATIENCE = 10.0
_TORCH_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def preload() -> None:
    """Import :data:`PRELOAD`."""
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    # lets torch.cuda.is_available() ask without creating a context, which could not be forked
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Torch reads it as it is imported. From 2.14 on its allocator warns on stderr, in the user's cell, whenever it is
    # refused a segment, which is how a session learns that it has to ask for more memory.
    os.environ.setdefault(_TORCH_LOG_LEVEL, "ERROR")
    for module in PRELOAD:
        importlib.import_module(module)
    del os.environ[_TORCH_LOG_LEVEL]
    importlib.import_module("sharedkernel.session.kernel.app").prepare()


def why_unfit(descriptors: Path = Path("/proc/self/fd")) -> str | None:
    """Return why no working session could be forked from this process, in one sentence; None if it can.

    A CUDA context, or only an initialised driver, does not survive a fork, and nothing tells a child that it has one.
    An initialised driver has `/dev/nvidia-uvm` open; code that only queries a GPU, as through NVML, does not open it.

    Parameters
    ----------
    descriptors
        Directory with this process's open descriptors.
    """
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith("/dev/nvidia-uvm"):
                return (
                    "importing what sessions share has initialised CUDA, which does not survive a fork: sessions will "
                    "not be able to use the GPU. Look for a package that does so when it is imported."
                )
    return None


class WarmParent:
    """Forks and reaps sessions, at the word of one executor at a time.

    Parameters
    ----------
    path, executor_socket
        Where to listen, and where the sessions find their executor.
    patience
        Seconds to wait for an executor while there is neither a session nor an ending to report.
    """

    def __init__(self, path: str, executor_socket: str, *, patience: float = PATIENCE) -> None:
        self._path = path
        self._patience = patience
        self._listener = listen(path)
        self._socket = os.stat(path)
        self._executor_socket = executor_socket
        self._executor: PacketSocket | None = None
        self._children: dict[int, str] = {}
        #: endings that no executor has taken note of yet, by process
        self._ended: dict[str, protocol.Exited] = {}
        #: another listens in its place
        self.is_retired = False
        #: its executor has gone and may have stopped programs
        self._has_lost_executor = False
        self._child_ended, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until told to quit, or retired and without a session."""
        while not self.is_retired or self._children or self._ended:
            sources: list[Any] = [self._listener, self._child_ended]
            if self._executor is not None:
                sources.append(self._executor)
            patience = self._patience if self._is_idle() else None
            if self._has_lost_executor:
                patience = _STOPPED_PATIENCE
            readable, _, _ = select.select(sources, [], [], patience)
            if not readable and self._has_lost_executor:
                self._has_lost_executor = False
                resume_recorded(Path(self._path).parent / STOPPED_DIRECTORY)
                continue
            if not readable:  # its executor was killed, and no other came
                return
            if self._child_ended in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._child_ended, 4096)
                self._reap()
            if self._listener in readable:
                self._take_executor()
            # Not where another has just taken its place.
            if self._executor in readable and not self._serve():
                return

    def _is_idle(self) -> bool:
        """Whether it keeps nothing. Endings are kept for an executor, which finds this process by its socket's path."""
        path = Path(self._path)
        retired = path.with_name(RETIRED_SOCKETS.replace("*", str(os.getpid())))
        has_endings = bool(self._ended) and (self._is_own(path) or self._is_own(retired))
        return self._executor is None and not self._children and not has_endings

    def _is_own(self, path: Path) -> bool:
        """Whether its socket is at *path*, and not another warm parent's that took its place."""
        with contextlib.suppress(OSError):
            return os.path.samestat(path.stat(), self._socket)
        return False

    def remove_socket(self) -> None:
        """Remove its socket, unless another has taken its place."""
        if self._is_own(Path(self._path)):
            os.unlink(self._path)

    def end_children(self) -> None:
        """End what is left: sessions forked while the executor was already stopping."""
        for pid in self._children:
            for send in (os.kill, os.killpg):  # the group exists only once the child has made it
                with contextlib.suppress(ProcessLookupError):
                    send(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._children.clear()
        with contextlib.suppress(ChildProcessError):
            while True:
                self._end_leftovers()
                os.waitpid(-1, 0)

    def _take_executor(self) -> None:
        connection = accept_own(self._listener, protocol.ToWarmParent)
        if connection is None:
            return
        self._hang_up()
        connection.set_timeout(PEER_PATIENCE)
        self._executor, self._has_lost_executor = connection, False
        for ended in self._ended.values():
            self._report(ended)

    def _serve(self) -> bool:
        """Handle one message of the executor; False if it says to quit."""
        assert self._executor is not None
        try:
            message, descriptors = self._executor.receive()
        except (OSError, ProtocolError) as error:
            print(f"hung up on an executor: {error}", file=sys.stderr)  # noqa: T201 (its log)
            message, descriptors = None, []
        if message is None:
            self._hang_up()
        elif isinstance(message, protocol.Fork) and descriptors:
            self._fork(message, descriptors[0])
        elif isinstance(message, protocol.ExitedSeen):
            self._ended.pop(message.process, None)
        elif isinstance(message, protocol.Retire):
            self.is_retired = True
        for descriptor in descriptors:
            os.close(descriptor)
        return not isinstance(message, protocol.Quit)

    def _hang_up(self) -> None:
        if self._executor is not None:
            self._executor.close()
            self._executor, self._has_lost_executor = None, True

    def _report(self, message: protocol.Message) -> None:
        if self._executor is not None:
            try:
                self._executor.send(message)
            except ConnectionError:
                pass  # gone: what it said last is still to be read, and may be to quit
            except OSError:  # it does not read: it connects again, and is told again
                self._hang_up()

    def _fork(self, message: protocol.Fork, page: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._report(protocol.NotForked(process=message.process, why=os.strerror(error.errno or 0)))
            return
        if pid == 0:
            self._become_session(message, page)
        self._children[pid] = message.process
        self._report(protocol.Forked(process=message.process, pid=pid))

    def _become_session(self, message: protocol.Fork, page: int) -> NoReturn:
        code = 1
        try:
            os.setsid()  # an interrupt goes to the whole group, which must be the session's own
            self._release_inherited(page)
            processes.be_ended_first()
            _redirect(message.log_file)
            from sharedkernel.session.kernel import app
            from sharedkernel.session.kernel.restart import Launch

            own = message.process, message.connection_file, self._executor_socket, page
            app.run(Launch(*own, message.device_kind, message.memory_mode, message.isolation))
            code = 0
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            processes.end_process(code)

    def _release_inherited(self, page: int) -> None:
        """Keep nothing of this process in a session but its standard streams and *page*.

        A session's user could stop the warm parent with any end of what it waits for: flags such as O_NONBLOCK belong
        to an open file, which a fork shares.
        """
        signal.set_wakeup_fd(-1)
        processes.reset_signals()
        self._listener.close()
        self._hang_up()
        os.close(self._child_ended)
        os.close(self._wakeup)
        processes.close_descriptors_but({0, 1, 2, page})

    def _reap(self) -> None:
        endings = []
        while (reaped := _reap_one()) is not None:
            pid, status = reaped
            process = self._children.pop(pid, None)
            if process is not None:
                endings.append(protocol.Exited(process=process, pid=pid, status=status))
        self._end_leftovers()
        for ended in endings:
            self._ended[ended.process] = ended
            self._report(ended)

    def _end_leftovers(self) -> None:
        """End children that were not forked here.

        Orphans of a session's programs become children of the session, and of this process when the session ends.
        """
        try:
            children = psutil.Process().children()
        except OSError as error:  # no descriptor left; the next ending has it look again
            print(f"cannot look for children: {error.strerror}", file=sys.stderr)  # noqa: T201 (its log)
            return
        for child in children:
            if child.pid not in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)


def _reap_one() -> tuple[int, int] | None:
    """Return an ended child's process id and wait status; None if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _redirect(log_file: str) -> None:
    """Point standard input at nothing, and output at *log_file* or, where that cannot be written, at nothing."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        output = null
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in {null, output}:
        os.close(descriptor)


def main(path: str, executor_socket: str, stamp: str) -> None:
    """Be the warm parent.

    Raises
    ------
    SystemExit
        When the executor that starts it could not talk to its sessions.
    """
    if not stamp.startswith(f"{protocol.PROTOCOL_VERSION}/"):
        sys.exit("another version of sharedkernel was installed since the executor started; install that one again.")
    os.setsid()
    processes.set_name("sk-warm-parent")
    processes.reset_signals()
    if sys.path[0] in ("", os.getcwd()):  # sessions look for modules where their notebooks are
        del sys.path[0]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.adopt_orphans()
    parent = WarmParent(path, executor_socket)  # listens first: the executor's connection waits while we import
    preload()
    if (unfit := why_unfit()) is not None:
        print(unfit, file=sys.stderr)  # noqa: T201 (its log)
    gc.collect()
    gc.freeze()  # keeps the collector from writing to, and so copying, what all sessions share
    parent.run()
    parent.end_children()
    parent.remove_socket()


if __name__ == "__main__":
    main(*sys.argv[1:])
