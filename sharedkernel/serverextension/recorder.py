"""Listens to this Jupyter server's shared kernels, so that a page that was reloaded gets its outputs back.

A page alone knows which outputs belong to which cell, and forgets it when it is reloaded or closed; a training that
runs for hours then shows nothing more. Here it is kept (`cell_record.py`), and the page asks for it (`handlers.py`).

Covers kernels that are relays. Those of ``--gateway-url`` have no sockets on this machine.
"""

from __future__ import annotations

import logging
from typing import Any

from jupyter_client.session import Session as MessageSession
from jupyter_events import EventLogger
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from sharedkernel.serverextension.cell_record import CellRecords

log = logging.getLogger(__name__)

_KERNEL_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"
_RELAY = "sharedkernel.relay"


class Recorder:
    """Keeps what the cells of shared kernels have shown, from each kernel's start to its end.

    Parameters
    ----------
    kernels
        The server's kernels.
    events
        Where the server tells of their starts and ends.
    """

    def __init__(self, kernels: MappingKernelManager, events: EventLogger) -> None:
        self._kernels = kernels
        self._records: dict[str, CellRecords] = {}
        self._streams: dict[str, Any] = {}
        events.add_listener(schema_id=_KERNEL_ACTIONS, listener=self._on_kernel_action)

    def records(self, kernel_id: str) -> CellRecords | None:
        """Return what a kernel's cells have shown; None when it is none of ours."""
        return self._records.get(kernel_id)

    def close(self) -> None:
        """Listen no more."""
        for kernel_id in list(self._records):
            self._forget(kernel_id)

    async def _on_kernel_action(self, logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        kernel_id = data.get("kernel_id")
        if data.get("status") != "success" or not isinstance(kernel_id, str):
            return
        if data.get("action") == "shutdown" or kernel_id not in self._kernels:
            self._forget(kernel_id)
        elif data.get("action") in ("start", "restart"):
            self._listen(kernel_id)

    def _listen(self, kernel_id: str) -> None:
        manager: Any = self._kernels.get_kernel(kernel_id)
        spec = getattr(manager, "kernel_spec", None)
        if spec is None or _RELAY not in spec.argv:
            return
        self._forget(kernel_id)
        records = self._records[kernel_id] = CellRecords(lambda: self._is_attended(kernel_id))
        # no history: or up to 65,536 signatures, some 10 MB, are kept for each kernel
        session = MessageSession(config=manager.session.config, key=manager.session.key, digest_history_size=0)
        stream = self._streams[kernel_id] = manager.connect_iopub()

        def take(frames: list[bytes]) -> None:
            try:
                _, parts = session.feed_identities(frames)
                message = session.deserialize(parts)
                records.take(message["msg_type"], message["parent_header"].get("msg_id", ""), message["content"])
            except (ValueError, TypeError, KeyError):
                log.warning("kernel %s published something that is no message", kernel_id, exc_info=True)

        stream.on_recv(take)

    def _is_attended(self, kernel_id: str) -> bool:
        return kernel_id in self._kernels and self._kernels.kernel_model(kernel_id)["connections"] > 0

    def _forget(self, kernel_id: str) -> None:
        self._records.pop(kernel_id, None)
        stream = self._streams.pop(kernel_id, None)
        if stream is not None and not stream.closed():
            stream.close()
