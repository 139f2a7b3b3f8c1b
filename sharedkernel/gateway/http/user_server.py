"""Routes to users' own servers on this host: stock contents, files and terminals, and uploads that can be resumed.

A request is checked here (token, switches, number of connections), then its connection is joined to the user's server:
bodies, answers and websockets pass as bytes, in bounded memory, and are not looked at. Only the token in a request's
header counts, never the page's cookie, so that nothing in a user's file can act as the page. Token, cookies and origin
stay here. A connection carries one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast
from urllib.parse import unquote

from jupyter_server.base.handlers import APIHandler, JupyterHandler
from prometheus_client import Counter
from tornado import web
from tornado.iostream import IOStream, StreamClosedError

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.audit import AuditedHandler
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.errors import ErrorResponseMixin
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.gateway.http.server import TOKEN_IN_ADDRESS
from sharedkernel.gateway.http.splice import Splice, WebsocketRefused, request_head, shake_hands, uri_of
from sharedkernel.jupyter.names import machine_digest

#: requests that were joined to a user's server, by what they are about
_REQUESTS = Counter("sharedkernel_user_server_requests", "Requests for users' files and terminals.", ["kind"])
#: seconds without a byte after which a request is given up; a terminal may be silent for as long as it likes
_SILENCE = 600.0
#: seconds to have a server started and to connect to it, and for such a body to come
_PATIENCE = 20.0
_SENTENCE = b'{"message": "what serves your files and terminals has ended; try again.", "reason": "start"}'
#: sent where the user's server ends without an answer
_NO_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_SENTENCE), _SENTENCE)
)
#: of a path's begin and of its end, in the audit log
_AUDITED_CHARACTERS = 500
#: most bytes of a body that names another file
_MOST_NAMES = 1 << 16
_LOOKS = ("GET", "HEAD", "OPTIONS")


async def connect_here(executors: Executors, user: GatewayUser) -> tuple[IOStream, Mapping[str, str]]:
    """Return a connection to a user's server on this host, which is started if there is none, and no headers for it.

    Raises
    ------
    Refused
        When there can be none.
    OSError, StreamClosedError
        When it does not answer.
    """
    device = next(iter(executors.connected()), None)
    if device is None:
        raise executors.unavailable()
    path = await executors[device].open_user_server(user.username)
    stream = IOStream(socket.socket(socket.AF_UNIX))
    try:
        await stream.connect(path)  # type: ignore[arg-type]
    except BaseException:
        stream.close()
        raise
    return stream, {}


@web.stream_request_body
class UserServerHandler(ErrorResponseMixin, AuditedHandler, JupyterHandler):
    """A request for the files or terminals of the user who sends it."""

    #: setting that allows it, and what its refusal calls it
    switch: ClassVar[str] = "files"
    is_websocket: ClassVar[bool] = False
    _splice: Splice | None = None

    async def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Join the connection to the user's server; returns when it is closed."""
        await super().prepare(*args, **kwargs)
        if self.current_user is None:
            raise web.HTTPError(403)
        if getattr(self.request, TOKEN_IN_ADDRESS, False):  # a page in a user's file would be at the gateway's address
            raise Refused("send the token in the header Authorization, not in the address.", reason="not_allowed")
        if not self.settings[f"serves_{self.switch}"]:
            raise Refused(
                f"{self.switch} are switched off on this gateway; its admin can change that "
                f"(c.SharedKernelGateway.{self.switch}).",
                reason="switched_off",
            )
        upgrades = self.is_websocket and self.request.headers.get("Upgrade", "").lower() == "websocket"
        if self.is_websocket and not upgrades:
            raise Refused("this address is for a websocket.", reason="bad_request")
        length = self._length_of_names()
        with self.settings["open_websockets"].place_for(self):
            with self._answered():
                async with asyncio.timeout(_PATIENCE):
                    server, own = await self.settings["connect_user_server"](self.current_user)
            method, headers = self.request.method or "", self.request.headers.get_all()
            head = request_head(method, uri_of(self), headers, own, upgrades=upgrades)
            _REQUESTS.labels(kind=self.switch).inc()
            if upgrades:  # what the client sends behind a request that is refused is another request, to be checked
                self._record()
                with self._answered():
                    answer = await shake_hands(server, head)
                self._splice = Splice(cast("IOStream", self.detach()), server, answer)
            else:
                client = cast("IOStream", self.detach())
                names = await self._names(client, length) if length else b""
                self._record(names)
                self._splice = Splice(client, server, to_host=head + names, no_answer=_NO_ANSWER)
            watch = None if upgrades else asyncio.create_task(self._splice.close_when_silent(_SILENCE))
            try:
                await self._splice.run()
            finally:
                if watch is not None:
                    watch.cancel()

    def _length_of_names(self) -> int:
        """Return the bytes of a body that names another file: what a file is called next, or which one is copied."""
        headers = self.request.headers
        if self.switch != "files" or self.request.method not in ("PATCH", "POST"):
            return 0
        length = headers.get("Content-Length", "0")
        if "Transfer-Encoding" in headers or not length.isdecimal() or int(length) > _MOST_NAMES:
            raise Refused(f"send Content-Length, of at most {_MOST_NAMES} bytes.", reason="bad_request")
        return int(length)

    async def _names(self, client: IOStream, length: int) -> bytes:
        """Return that body; nothing once the client has given up, or takes too long."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await client.read_bytes(length)
        except (TimeoutError, StreamClosedError):
            client.close()
            return b""

    def _record(self, names: bytes = b"") -> None:
        """Record in the audit log what is opened, fetched or changed; lists are not."""
        method, path = self.request.method, posixpath.normpath(unquote(self.request.path))
        is_list = self.get_query_argument("content", "1") == "0" or self.get_query_argument("type", "") == "directory"
        is_file = re.match(r"(sharedkernel/)?files/|api/contents/", path.removeprefix(self.base_url))
        if self.is_websocket or method not in _LOOKS or (is_file and not is_list):
            paths = {"path": path, **_named(names)}
            self.settings["audit_log"].record(self.switch, method=method, **{key: _cut(paths[key]) for key in paths})

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        """Refuse the request if the user's server does not answer, or refuses a websocket."""
        try:
            yield
        except WebsocketRefused as refused:
            raise web.HTTPError(refused.code, reason=refused.reason) from None
        except OSError:
            raise Refused(f"what serves your {self.switch} does not answer; try again.", reason="start") from None

    def data_received(self, chunk: bytes) -> None:
        """Drop the body of a request that was refused."""

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """End the connection; *code* and *reason* are a websocket's, which the user's server would have to say."""
        if self._splice is not None:
            self._splice.close()


def _named(body: bytes) -> dict[str, str]:
    """Return the names of other files in a request's body."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(body or b"{}"), dict):
            places = {"to": found.get("path"), "copy_from": found.get("copy_from")}
            return {key: place for key, place in places.items() if isinstance(place, str)}
    return {}


def _cut(path: str) -> str:
    if len(path) <= 2 * _AUDITED_CHARACTERS:
        return path
    return f"{path[:_AUDITED_CHARACTERS]}…{path[-_AUDITED_CHARACTERS:]}"


class UserHostHandler(ErrorResponseMixin, APIHandler):
    """``/sharedkernel/api/host``: the name of this machine, which it is, and what users reach there."""

    @web.authenticated
    def get(self) -> None:
        """Answer it."""
        reached = {kind: self.settings[f"serves_{kind}"] for kind in ("files", "terminals")}
        self.finish({"name": socket.gethostname(), "machine": machine_digest(), **reached})


class UserTerminalsHandler(UserServerHandler):
    """The list of terminals."""

    switch = "terminals"


class UserTerminalHandler(UserTerminalsHandler):
    """The websocket of a terminal."""

    is_websocket = True


default_handlers: list[Any] = [
    (r"/api/contents", UserServerHandler),
    (r"/api/contents/.*", UserServerHandler),
    (r"/files/.*", UserServerHandler),
    (r"/sharedkernel/files/.*", UserServerHandler),
    (r"/sharedkernel/api/host", UserHostHandler),
    (r"/api/terminals", UserTerminalsHandler),
    (r"/api/terminals/(\w+)", UserTerminalsHandler),
    (r"/terminals/websocket/(\w+)", UserTerminalHandler),
]
