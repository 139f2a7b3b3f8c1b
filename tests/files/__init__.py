"""A gateway with an executor whose users have homes of their own, for tests of their files and terminals."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from sharedkernel.client.gateway.credentials import CA_VARIABLE
from sharedkernel.executor.isolation.accounts import directory_name
from sharedkernel.local_stack import LocalStack
from tests.executor.harness import Executor
from tests.executor.isolation import ADA, GRACE, HEDY, ApartExecutor
from tests.gateway.client import Client
from tests.gateway.test_tls import issue


class FileStack(LocalStack):
    """A stack at the level `homes`, or at `users` beside root's executor *apart*; encrypted at any other *address*."""

    def __init__(self, apart: ApartExecutor | None = None, address: str = "", **options: Any) -> None:
        self.apart = apart
        options.setdefault("config", "c.SharedKernelGateway.terminals = True")
        super().__init__(users=[HEDY, ADA, GRACE], **options)
        self.homes = self.directory / "homes" if apart is None else apart.homes
        if apart is None:
            self.executor.arguments += ["--isolate", "off", "--homes", str(self.homes)]
        else:
            self.executors = {}
        self._ca_file = ""
        if address:
            files = issue(self.directory / "tls", address)
            self._ca_file = files.ca
            self.gateway_url = f"https://{address}:{self.port}"
            self.gateway.arguments += ["--certfile", files.certificate, "--keyfile", files.key]
            self.gateway.arguments[self.gateway.arguments.index("127.0.0.1")] = address

    def client_environment(self, user: str) -> dict[str, str]:
        return super().client_environment(user) | {CA_VARIABLE: self._ca_file}

    @property
    def runtime_directory(self) -> Path:
        return super().runtime_directory if self.apart is None else self.apart.runtime_directory

    def home(self, user: str = ADA) -> Path:
        return self.homes / directory_name(user)

    def client(self, user: str = ADA) -> Client:
        return Client(self.gateway_url, self.token(user))

    def servers(self) -> list[psutil.Process]:
        """Return the users' servers that run."""
        lock_folder = str(self.runtime_directory / "u")
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                files = Path(f"/proc/{process.pid}/fd").iterdir()
                if process.name() == "sk-files" and any(os.readlink(file).startswith(lock_folder) for file in files):
                    found.append(process)
        return found


@contextmanager
def apart_stack(**options: Any) -> Iterator[FileStack]:
    """Have a stack at the level `users`."""
    process = ApartExecutor("--end-sessions-on-exit")

    async def reach() -> None:
        async with Executor(process):
            pass

    with ThreadPoolExecutor(1) as thread:  # this one may have playwright's event loop
        try:
            thread.submit(asyncio.run, reach()).result()
            with FileStack(process, **options) as stack:
                yield stack
        finally:
            thread.submit(process.close).result()


def with_checksum(content: bytes) -> bytes:
    """Return the body that uploads *content* as a whole."""
    return content + hashlib.sha256(content).digest()
