"""Executors and a gateway on loopback, for one command or one test, gone without a trace when it ends.

`lab`, `demo` and `bench` stand on it. Everything lives in one private directory: sockets, logs, configuration, the
users' tokens, the kernelspec. Linux only; not for serving others: that is what `sharedkernel executor` and
`sharedkernel gateway` under an init system are for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from sharedkernel.client.gateway.credentials import find_credentials
from sharedkernel.client.gateway.refusals import GatewayUnreachable
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.paths import EXECUTOR_SOCKET, LONGEST_RUNTIME_DIRECTORY, device_directory
from sharedkernel.services import Service
from sharedkernel.status.document import StatusDocument
from sharedkernel.system.signals import uninterrupted

#: says which ports the system gives to those who name none
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: below it are the ports that people write down for their services
_LOWEST_PORT = 20_000


class LocalStack:
    """An executor (or several) and a gateway on loopback, with a token for each of *users* and the kernelspec.

    Use it as a context manager, from a thread that lives as long as it does::

        with LocalStack(users=["ada", "grace"], capacity="2GiB") as stack:
            environment = os.environ | stack.client_environment("ada")
            subprocess.run(["jupyter", "console", "--kernel", "shared-gpu"], env=environment)

    Parameters
    ----------
    users
        Who may come; the first one is an admin.
    devices
        Each has an executor of its own.
    capacity
        Of each device, as ``sharedkernel executor`` takes it; None: what the executor takes by itself.
    quotas, groups
        As in ``jupyter_sharedkernel_config.py``.
    config
        More lines for that file; ``c`` is there.
    executor_arguments
        More options for the executor's command line.
    port
        The gateway's; None: a free one.
    """

    def __init__(
        self,
        *,
        users: Sequence[str] = ("user",),
        devices: Sequence[str] = ("host",),
        capacity: str | None = "4GiB",
        quotas: Mapping[str, Any] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        config: str = "",
        executor_arguments: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        self.users = list(users)
        # Nobody comes back to a stack's sessions, unless it is said how long they should wait.
        quotas = {**(quotas or {}), "default": {"linger": 0, **(quotas or {}).get("default", {})}}
        self._settings = {
            "quotas": quotas, "groups": groups, "admins": set(self.users[:1]),
            "executors": list(devices) if len(devices) > 1 else None,
        }  # fmt: skip
        self._extra_config = config
        #: holds everything
        self.directory = _make_directory(devices)
        #: has the kernelspec ``shared-gpu``; a ``KernelSpecManager.kernel_dirs`` entry
        self.kernels_directory = self.directory / "jupyter" / "kernels"
        self._config_path = self.directory / "jupyter_sharedkernel_config.py"
        places = ["--runtime-dir", str(self.runtime_directory), "--state-dir", str(self.runtime_directory)]
        self.port = port if port is not None else free_port()
        self.gateway_url = f"http://127.0.0.1:{self.port}"
        self._tokens: dict[str, str] = {}
        capacity_arguments = [] if capacity is None else ["--capacity", capacity]
        #: the executors' services, by device
        self.executors = {
            name: Service(
                [
                    "executor", "--device", name, *capacity_arguments, "--end-sessions-on-exit",
                    *places, *executor_arguments,
                ],
                log_path=self.directory / ("executor.log" if name == devices[0] else f"executor-{name}.log"),
                is_ready=partial(self._executor_answers, name),
                scratch=self._scratch,
            )
            for name in devices
        }  # fmt: skip
        self.gateway = Service(
            [
                "gateway", "--ip", "127.0.0.1", "--port", str(self.port),
                *places, "--config", str(self._config_path),
            ],
            log_path=self.directory / "gateway.log",
            is_ready=self._gateway_answers,
            scratch=self._scratch,
        )  # fmt: skip

    @property
    def executor(self) -> Service:
        """The only executor, or the first of several."""
        return next(iter(self.executors.values()))

    @property
    def runtime_directory(self) -> Path:
        """The directory in which executor and gateway meet."""
        return self.directory / "run"

    @property
    def _scratch(self) -> Path:
        return self.directory / "tmp"

    def token(self, user: str) -> str:
        """Return *user*'s token."""
        return self._tokens[user]

    def client_environment(self, user: str) -> dict[str, str]:
        """Return the variables with which any Jupyter client finds the kernelspec and acts as *user*."""
        path = [str(self.kernels_directory.parent), os.environ.get("JUPYTER_PATH", "")]
        return {
            "JUPYTER_PATH": os.pathsep.join(filter(None, path)),
            "SHAREDKERNEL_GATEWAY_URL": self.gateway_url,
            "SHAREDKERNEL_TOKEN": self.token(user),
        }

    def status(self, user: str | None = None) -> StatusDocument:
        """Return the status document as *user* (default: the admin) may see it."""
        return fetch_status(find_credentials("", self.client_environment(user or self.users[0])))

    def start(self) -> None:
        """Start both services; returns once both answer.

        Raises
        ------
        SharedKernelError
            When one of them does not, with the last lines of its log; nothing is left running then.
        """
        try:
            self._prepare()
            services = [*self.executors.values(), self.gateway]
            for service in services:
                service.start()
            for service in services:
                service.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the services and every session, and remove everything; returns once that is so."""
        with uninterrupted():
            self.gateway.stop()
            for device, executor in self.executors.items():
                ended = executor.process is not None and not executor.running
                if ended and self._executor_socket(device).exists():  # it went without a good-bye, which removes it
                    # Only an executor can end what another one has left running: sessions survive their executor.
                    with contextlib.suppress(SharedKernelError):
                        executor.start()
                        executor.wait_until_ready()
                executor.stop()
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _prepare(self) -> None:
        """Write what the services and the clients read."""
        from sharedkernel.client.connect import write_kernelspec
        from sharedkernel.gateway.auth.tokens import TokenFile

        self.runtime_directory.mkdir(mode=0o700, exist_ok=True)
        self._scratch.mkdir(exist_ok=True)
        tokens = TokenFile(self.directory / "tokens.json")
        self._tokens = {user: tokens.add(user) for user in self.users}
        settings = {"identity": "tokens", "tokens_file": str(self.directory / "tokens.json"), **self._settings}
        lines = [f"c.SharedKernelGateway.{name} = {value!r}" for name, value in settings.items() if value]
        self._config_path.write_text("\n".join(["c = get_config()  # noqa", *lines, self._extra_config, ""]))
        write_kernelspec(self.kernels_directory / "shared-gpu")

    def _executor_socket(self, device: str) -> Path:
        return device_directory(self.runtime_directory, device) / EXECUTOR_SOCKET

    def _executor_answers(self, device: str) -> bool:
        with socket.socket(socket.AF_UNIX) as attempt:
            return attempt.connect_ex(str(self._executor_socket(device))) == 0

    def _gateway_answers(self) -> bool:
        try:
            devices = self.status().devices or ()
        except GatewayUnreachable:
            return False
        except Refused as refusal:
            # It is there but has not reached the executor yet.
            if refusal.reason != "executor_unavailable":
                raise
            return False
        return all(device.available or not self.executors[device.name].running for device in devices)


def _make_directory(devices: Sequence[str]) -> Path:
    """Make a directory for a stack where temporary files go, or in `/tmp` where that has too long a path for sockets.

    Batch systems set `TMPDIR` to a directory of each job's own, many levels deep.
    """
    place = Path(tempfile.gettempdir())
    deepest = max(len(os.fsencode(device_directory(place / "sk-........" / "run", device))) for device in devices)
    return Path(tempfile.mkdtemp(prefix="sk-", dir=place if deepest <= LONGEST_RUNTIME_DIRECTORY else "/tmp"))


def free_port() -> int:
    """Return a free port of the loopback address, outside the range that the system assigns from.

    The system may assign a port of that range to another program before the service listens there, or while it
    restarts.
    """
    ports = range(0)
    with contextlib.suppress(OSError):
        ports = range(_LOWEST_PORT, int(_PORT_RANGE.read_text().split()[0]))
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):  # taken
            probe.bind(("127.0.0.1", secrets.choice(ports) if ports else 0))
            return probe.getsockname()[1]
