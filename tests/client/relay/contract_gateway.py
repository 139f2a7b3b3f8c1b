"""A gateway that keeps the contract which relays rely on, and no more: a stock Jupyter server with stock kernels.

It adds to the stock server what relays ask of ours: whoever asks again with the same ``KERNEL_CLIENT_KEY`` gets the
live session. What it refuses is read from a file, so that a test can change it at any moment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server import CallContext
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.web import HTTPError
from traitlets import Unicode


class ContractKernelManager(AsyncMappingKernelManager):
    """Finds the session of a relay that came before."""

    refusal_file = Unicode(config=True, help="While it exists, sessions are refused with its {status, message, reason}")
    journal_file = Unicode(config=True, help="Gets a line of JSON for each session asked for: its environment")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.by_key: dict[str, str] = {}

    async def _find_or_start(self, **kwargs: Any) -> str:
        environment = CallContext.get(CallContext.JUPYTER_HANDLER).get_json_body()["env"]
        self._note(environment)
        self._refuse_if_told()
        kernel_id = self.by_key.get(environment["KERNEL_CLIENT_KEY"])
        if kernel_id is None or kernel_id not in self:
            kernel_id = await ensure_async(super().start_kernel(**kwargs))
            self.by_key[environment["KERNEL_CLIENT_KEY"]] = kernel_id
        return kernel_id

    def _note(self, environment: dict[str, str]) -> None:
        with Path(self.journal_file).open("a") as journal:
            journal.write(json.dumps(environment) + "\n")

    def _refuse_if_told(self) -> None:
        if Path(self.refusal_file).exists():
            refusal = json.loads(Path(self.refusal_file).read_text())
            raise HTTPError(refusal["status"], refusal["message"], reason=refusal["reason"])

    start_kernel = _find_or_start  # type: ignore[assignment]


class ContractGateway(ServerApp):
    """The server; nothing but kernels."""

    default_services = ("api", "kernels", "kernelspecs", "sessions")
    kernel_manager_class = ContractKernelManager


if __name__ == "__main__":
    ContractGateway.launch_instance()
