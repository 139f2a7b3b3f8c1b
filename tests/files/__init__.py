"""A gateway with an executor whose users have homes of their own, for tests of their files and terminals."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import psutil

from sharedkernel.local_stack import LocalStack
from sharedkernel.system.secure_directories import directory_name
from tests.executor.isolation import ADA, GRACE, HEDY, ApartExecutor
from tests.gateway.client import Client


class FileStack(LocalStack):
    """A stack at the level `homes`, or at `users` beside root's executor *apart*."""

    def __init__(self, apart: ApartExecutor | None = None, **options: Any) -> None:
        self.apart = apart
        options.setdefault("config", "c.SharedKernelGateway.terminals = True")
        super().__init__(users=[HEDY, ADA, GRACE], **options)
        self.homes = self.directory / "homes" if apart is None else apart.homes
        if apart is None:
            self.executor.arguments += ["--isolate", "off", "--homes", str(self.homes)]
        else:
            self.executors = {}

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
            try:
                if process.name() == "sk-files" and any(
                    os.readlink(entry).startswith(lock_folder) for entry in Path(f"/proc/{process.pid}/fd").iterdir()
                ):
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return found


def with_checksum(content: bytes) -> bytes:
    """Return the body that uploads *content* as a whole."""
    return content + hashlib.sha256(content).digest()
