"""What a fault campaign is about: a stack, what of it may be killed, and whose processes these are."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.processes.process import PersistedSession, start_time
from sharedkernel.executor.processes.records import read_record
from sharedkernel.local_stack import LocalStack
from sharedkernel.paths import RECORDS_DIRECTORY, WARM_PARENT_SOCKET
from tests.executor.harness import until
from tests.gateway.client import Client
from tests.processes import belongs_to

#: of the file system for the services' files
_DISK_SIZE = "64m"


class FaultStack(LocalStack):
    """A local stack whose executor leaves its sessions behind when it stops, until the stack itself does.

    Parameters
    ----------
    device
        What the executor serves, such as ``cuda:0``.
    small_disk
        Whether the runtime directory is a small file system of its own, which can be filled; takes root.
    options
        Of the local stack.
    """

    def __init__(self, *, device: str = "host", small_disk: bool = False, **options: Any) -> None:
        on_host = device == "host"
        super().__init__(devices=[device], capacity="2GiB" if on_host else "1GiB", **options)
        #: what torch calls the device in a session
        self.torch_device = "cpu" if on_host else "cuda"
        if not on_host:  # the software GPU has no more than that
            self.executor.arguments += ["--reserve", "64MiB"]
        self.executor.arguments.remove("--end-sessions-on-exit")
        # or there would be more processes afterwards than before
        self.executor.arguments.append("--ExecutorApp.spares_in_demand=1")
        self._has_small_disk = small_disk

    def start(self) -> None:
        """Start both services, on a small file system for their files if there should be one."""
        if self._has_small_disk:
            self.runtime_directory.mkdir(mode=0o700)
            options = f"size={_DISK_SIZE},mode=0700"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "faults", self.runtime_directory], check=True)
        super().start()

    def stop(self) -> None:
        """End everything."""
        self.executor.stop()
        self.executor.arguments.append("--end-sessions-on-exit")
        with contextlib.suppress(SharedKernelError):
            self.executor.start()
            self.executor.wait_until_ready()
        super().stop()
        if self.runtime_directory.is_mount():
            subprocess.run(["umount", "--lazy", self.runtime_directory], check=True)
            shutil.rmtree(self.directory)

    def processes(self) -> list[psutil.Process]:
        """Return all processes that name this stack's directory."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and belongs_to(process, self.directory):
                    found.append(process)
        return found

    def warm_parent(self) -> psutil.Process | None:
        """Return the warm parent; None while there is none."""
        path = str(self.runtime_directory / WARM_PARENT_SOCKET)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if any(connection.laddr == path for connection in process.net_connections("unix")):
                    return process
        return None

    def num_records(self) -> int:
        """Return how many sessions the executor keeps a record of, those that are ready for nobody yet included."""
        return sum(1 for _ in (self.runtime_directory / RECORDS_DIRECTORY).iterdir())

    def sessions(self) -> dict[str, int]:
        """Return the process ids of all sessions, by client key, as their records say: with or without an executor."""
        return {
            record.client_key: record.pid
            for record in session_records(self.runtime_directory)
            if record.client_key is not None and start_time(record.pid) == record.started
        }


def session_records(runtime_directory: Path) -> Iterator[PersistedSession]:
    """Yield what an executor has recorded of its sessions, which may have ended."""
    for path in (runtime_directory / RECORDS_DIRECTORY).iterdir():
        with contextlib.suppress(OSError):  # it ended just now
            if (record := read_record(path)) is not None:
                yield record


async def insist_on_session(client: Client) -> str:
    """Start a session, if not at the first attempt; return its kernel."""
    kernels: list[str] = []

    async def is_started() -> bool:
        answer = await client.request("POST", "/api/kernels", {"name": "shared-gpu"})
        if answer.status == 201:
            kernels.append(answer.body["id"])
        return bool(kernels)

    await until(is_started, "a session starts")
    return kernels[0]
