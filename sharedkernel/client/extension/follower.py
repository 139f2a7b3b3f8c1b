"""Follows the gateway's status document for all pages of one Jupyter server.

One websocket to the gateway, however many pages are open, and none while there is no page. Each page gets a *view*:

===========  =========================================================================================
key          what
===========  =========================================================================================
`version`    of this document; a page that knows another one says so
`gateway`    `state`: "connecting", "connected", "no_figures" (it answers, no executor does), "away" (comes back
             by itself), "refused" (somebody has to do something) or "unconfigured"; `message`: a sentence for the
             user, or null; `since`: when there were figures last, in seconds since 1970, or null
`user`       `name` and whether `admin`; null while not known
`host`       `name` of the gateway's machine, and whether the user's `files` can be reached on it; null while not
             known, and where it is this one
`kernels`    the session behind each kernel of this Jupyter server, by kernel id
`status`     the gateway's status document as this user may see it; null until there is one. While the
             gateway or its executor is away it is the last one
===========  =========================================================================================

The gateway is tried again for as long as a page is open, whatever was wrong.

A kernel of ``jupyter lab --gateway-url`` has its session's id. A relay is a kernel of this server with an id of its
own; it asks for its session under a name made of its connection file, and the same name is made here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
from jupyter_server.services.sessions.sessionmanager import SessionManager
from jupyter_server.utils import ensure_async

from sharedkernel.client.extension.upstream import FindUpstream, Upstream
from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.gateway.refusals import GatewayRefused
from sharedkernel.errors import ConfigError, ProtocolError, SharedKernelError
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import client_key
from sharedkernel.status.document import SessionStatus, StatusDocument, read_status

log = logging.getLogger(__name__)

#: a page: called with the view (JSON), of which a later one may take an earlier one's place before it is sent
Watcher = Callable[[str], None]
#: of the view
VERSION = 1
#: seconds between attempts to reach the gateway: doubling from the first to the second
RETRY_PAUSE = (0.2, 5.0)
#: seconds until a gateway is asked again that does not accept a token; sooner only with another one
REFUSED_PAUSE = 60.0
#: seconds between looks at this server's kernels: one may be known here only after its session's news
_KERNELS_INTERVAL = 0.5


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
        # Anybody can choose the key of their session: an id comes first.
        by_key = {session.client_key: session.id for session in known} | {session.id: session.id for session in known}
        return {
            kernel_id: session
            for kernel_id in self._kernels.list_kernel_ids()
            if (session := by_key.get(kernel_id) or by_key.get(self._client_key(kernel_id)))
        }

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

    def _client_key(self, kernel_id: str) -> str:
        manager = self._kernels.get_kernel(kernel_id)
        connection_file, session = getattr(manager, "connection_file", ""), getattr(manager, "session", None)
        # A kernel of another gateway has neither; one that is not ours has a key that no session has.
        return client_key(Path(connection_file), session.key) if connection_file and session is not None else ""


class Follower:
    """Keeps the pages' view up to date; needs a running event loop.

    Parameters
    ----------
    find_upstream
        The gateway, looked up for each connection.
    local_kernels
        This server's kernels.
    """

    def __init__(self, find_upstream: FindUpstream, local_kernels: LocalKernels) -> None:
        self._find_upstream = find_upstream
        self._local_kernels = local_kernels
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._kernels: dict[str, str] = {}
        self._forget()

    def add(self, watcher: Watcher) -> None:
        """Call *watcher* with the view from now on, and whenever it has changed."""
        self._watchers.add(watcher)
        if self._task is None:
            self._start()
        self._find_kernels()
        watcher(self._view())

    def remove(self, watcher: Watcher) -> None:
        """Call *watcher* no more."""
        self._watchers.discard(watcher)
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._forget()

    def begin_anew(self) -> None:
        """Look for the gateway at once, as if no page had been there before: there may be another one, or none."""
        if self._task is not None:
            self._task.cancel()
            self._forget()
            self._start()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._follow_both())
        self._task.add_done_callback(self._on_done)

    async def close(self) -> None:
        """Disconnect from the gateway and all pages."""
        self._watchers.clear()
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait([task])

    def _forget(self) -> None:
        """Start anew: what was true when the last page closed need not be true for the next one."""
        self._gateway: dict[str, str | float | None] = {"state": "connecting", "message": None, "since": None}
        self._user: dict[str, Any] | None = None
        self._host: dict[str, Any] | None = None
        self._status: StatusDocument | None = None

    async def _follow_both(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_gateway())
            group.create_task(self._follow_kernels())

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Meet an error of ours: it is logged, and a page that is reloaded begins anew."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("following the gateway ended unexpectedly", exc_info=error)
            self._task = None
            self._tell("refused", "the Jupyter server met an error, see its log; reload the page to try again.")

    async def _follow_kernels(self) -> None:
        while True:
            await asyncio.sleep(_KERNELS_INTERVAL)
            if self._find_kernels():
                self._show()

    async def _follow_gateway(self) -> None:
        shortest, longest = RETRY_PAUSE
        pause = shortest
        #: what was not accepted, and until when it is not tried again
        refused: Credentials | None = None
        refused_until = 0.0
        while True:
            upstream = None
            try:
                upstream = self._find_upstream()
                if upstream.credentials != refused or asyncio.get_running_loop().time() > refused_until:
                    if await self._follow(upstream):
                        pause = shortest
                    self._tell("away", f"the connection to the gateway at {upstream.url} broke; trying again.")
            except ConfigError as error:
                self._tell("unconfigured", str(error))
            except GatewayRefused as error:
                self._tell("away" if error.is_passing else "refused", str(error))
                if error.status in (401, 403) and upstream is not None:
                    refused = upstream.credentials
                    refused_until = asyncio.get_running_loop().time() + REFUSED_PAUSE
            except SharedKernelError as error:
                self._tell("away", str(error))
            # Spread: the Jupyter servers of many users lose one gateway at the same moment.
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))
            pause = min(2 * pause, longest)

    async def _follow(self, upstream: Upstream) -> bool:
        """Show what the gateway sends until the connection ends; return whether it sent anything."""
        user = await upstream.user()
        if user != self._user:
            # Another user, perhaps of another gateway: none of what the last one saw.
            self._user, self._host, self._status = user, None, None
        self._host = await upstream.host()
        heard = False
        websocket = await upstream.open_websocket("/sharedkernel/api/events")
        try:
            async for message in websocket.messages():
                heard = True
                self._take(upstream, message)
        finally:
            websocket.end()
        return heard

    def _take(self, upstream: Upstream, frame: str | bytes) -> None:
        answer: dict[str, Any] = {}
        with contextlib.suppress(ProtocolError):
            answer = wire.read_object(frame)
        if "device" not in answer and isinstance(message := answer.get("message"), str):
            since = answer.get("since")
            self._tell("no_figures", message, since if isinstance(since, int | float) else None)
            return
        try:
            self._status = read_status(answer, f"the gateway at {upstream.url}")
        except ProtocolError as error:
            log.warning("%s", error)
            self._tell("refused", str(error))
        else:
            self._tell("connected", None)

    def _tell(self, state: str, message: str | None, since: float | None = None) -> None:
        self._gateway = {"state": state, "message": message, "since": since}
        self._find_kernels()
        self._show()

    def _find_kernels(self) -> bool:
        """Look which kernel is which session; return whether that has changed."""
        before, sessions = self._kernels, [] if self._status is None else self._status.sessions
        self._kernels = self._local_kernels.sessions(sessions)
        return self._kernels != before

    def _show(self) -> None:
        view = self._view()
        for watcher in list(self._watchers):
            watcher(view)

    def _view(self) -> str:
        view = {
            "version": VERSION,
            "gateway": self._gateway,
            "user": self._user,
            "host": self._host,
            "kernels": self._kernels,
            "status": self._status,
        }
        return msgspec.json.encode(view).decode()
