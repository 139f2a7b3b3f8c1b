"""The kernels of this Jupyter server that are sessions on the gateway.

A kernel of ``jupyter lab --gateway-url`` has its session's id. A relay is a kernel of this server with an id of its
own; it asks for its session under a name made of its connection file, and the same name is made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
from jupyter_server.services.sessions.sessionmanager import SessionManager
from jupyter_server.utils import ensure_async

from sharedkernel.jupyter.names import client_key
from sharedkernel.status.document import SessionStatus


class LocalKernels:
    """The kernels of this server, as far as they are sessions on the gateway.

    Parameters
    ----------
    kernels, notebooks
        The server's managers.
    """

    def __init__(self, kernels: MappingKernelManager, notebooks: SessionManager) -> None:
        self._kernels = kernels
        self._notebooks = notebooks

    def sessions(self, known: Iterable[SessionStatus]) -> dict[str, str]:
        """Return the session id behind each kernel id of this server.

        Parameters
        ----------
        known
            The status document's sessions.
        """
        # One that was restarted or shut down keeps its key: the one in its place, or the last of them, is found.
        known = sorted(known, key=lambda session: (not session.lingering, session.lingering_seconds or 0.0))
        by_key: dict[str | None, str] = {session.client_key: session.id for session in known if session.client_key}
        ids = {session.id for session in known}
        found = {}
        for kernel_id in self._kernels.list_kernel_ids():
            session = kernel_id if kernel_id in ids else by_key.get(self._client_key(kernel_id))
            if session is not None:
                found[kernel_id] = session
        return found

    async def interrupt(self, kernel_id: str) -> None:
        """Interrupt a kernel of this server."""
        interrupt: Any = self._kernels.interrupt_kernel
        await ensure_async(interrupt(kernel_id))

    async def shut_down(self, kernel_id: str) -> None:
        """End a kernel of this server, and its notebook's connection to it."""
        for notebook in await self._notebooks.list_sessions():
            if notebook["kernel"]["id"] == kernel_id:
                await self._notebooks.delete_session(notebook["id"])
                return
        await ensure_async(self._kernels.shutdown_kernel(kernel_id))

    def _client_key(self, kernel_id: str) -> str | None:
        manager = self._kernels.get_kernel(kernel_id)
        connection_file, session = getattr(manager, "connection_file", ""), getattr(manager, "session", None)
        # A kernel of another gateway has neither; one that is not ours has a key that no session has.
        return client_key(Path(connection_file), session.key) if connection_file and session is not None else None
