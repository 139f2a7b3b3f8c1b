"""The user's files and terminals on the gateway's host, for JupyterLab.

JupyterLab's own services speak to ``/sharedkernel/api/host/…`` as they would to a Jupyter server. A drive's requests
are passed on to the gateway, and answers come back as they arrive. A copy between the host's files and this server's is
one request that answers with its progress, a JSON object a line; it ends with its connection. A terminal's websocket is
joined to a page's: what either says is passed on as it is. Where the terminal cannot be had, the sentence that says why
stands in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from socket import SHUT_RDWR
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.services.contents.filemanager import FileContentsManager
from jupyter_server.services.sessions.sessionmanager import SessionManager
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler
from websockets.exceptions import ConnectionClosed

from sharedkernel.client.extension.handlers import PassingOnHandler
from sharedkernel.client.extension.upstream import FindUpstream
from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.files import RemoteFiles
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable, refused, too_slow
from sharedkernel.client.gateway.server import to_thread
from sharedkernel.client.gateway.websocket import WebSocket
from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.jupyter.names import DRIVE, FOLDER_VARIABLE
from sharedkernel.status.text import safe_text

#: bytes of an answer that are passed on at a time, and most of a refusal
_BLOCK = 1 << 18
#: seconds for which the gateway may be silent, and until the head of its answer is there
_SILENCE, _HEAD_SECONDS = 60.0, 120.0
#: most requests for the drive, and most copies, at a time
_MOST_AT_A_TIME = 24
#: seconds between two lines of a copy's progress
_PERIOD = 0.25
#: headers of a request, and of an answer, that the other side needs
_OF_REQUESTS = ("Content-Type", "Range", "If-Modified-Since", "If-None-Match")
_OF_ANSWERS = ("Content-Type", "Content-Disposition", "Content-Length", "Content-Range", "Last-Modified", "ETag")
#: parameters of an address that are for this server alone
_OWN_PARAMETERS = ("_xsrf", "token")

#: with which a page's websocket is closed: for good, or the page is to connect anew
_ENDED, _LOST = 1000, 1012


class DriveHandler(PassingOnHandler):
    """``/sharedkernel/api/host/api/contents…``, ``…/api/terminals…`` and ``…/files/…``, as the user's server does."""

    #: to the gateway, once there is one
    _socket: Any = None

    @property
    def content_security_policy(self) -> str:
        """A sandbox for a file of the user's, as for Jupyter's own: it must not act as a page of this server."""
        return f"{super().content_security_policy}; sandbox allow-scripts"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer a list, or a file."""
        self.check_xsrf_cookie()  # as Jupyter does: a file is for this site's pages alone
        await self._pass_on()

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Make a file, a copy or a checkpoint."""
        await self._pass_on()

    put = patch = delete = post

    async def _pass_on(self) -> None:
        request = self.request
        path, _, query = request.uri.removeprefix(self.base_url + "sharedkernel/api/host").partition("?")
        kept = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] not in _OWN_PARAMETERS]
        target = quote(path, safe="/%:@!$&'()*+,;=~") + ("?" + urlencode(kept) if kept else "")
        gateway = self._find_upstream()
        async with room_for(self, DriveHandler):
            try:
                async with asyncio.timeout(_HEAD_SECONDS):
                    answer = await to_thread(self._ask, gateway, target)
            except TimeoutError:
                self.on_connection_close()
                raise too_slow(gateway.url) from None
            try:
                await self._answer(answer)
            except StreamClosedError:
                self.log.debug("%s was left before its end", request.path)
            except (OSError, HTTPException, ValueError) as error:
                self.log.info("%s was cut: %s", request.path, error)
                cast("Any", request.connection).stream.close()  # what has been sent must not look whole
            finally:
                await to_thread(answer.close)

    async def _answer(self, answer: HTTPResponse) -> None:
        self.set_status(answer.status, answer.reason)
        for name in _OF_ANSWERS:
            if (value := answer.headers.get(name)) is not None:
                self.set_header(name, value)
        while block := await to_thread(answer.read1, _BLOCK):
            self.write(block)
            await self.flush()
        await self.finish(set_content_type=answer.headers.get("Content-Type", "application/octet-stream"))

    def _ask(self, gateway: Gateway, target: str) -> HTTPResponse:
        """Return the head of an answer; blocks."""
        request = self.request
        headers = {name: request.headers[name] for name in _OF_REQUESTS if name in request.headers}
        if request.body:
            headers["Content-Length"] = str(len(request.body))
        connection = gateway.connect(request.method or "GET", target, headers, seconds=_SILENCE)
        self._socket = connection.sock
        try:
            connection.send(request.body)
            answer = connection.getresponse()
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise refused(gateway.url, answer.status, answer.reason, answer.read(_BLOCK), target)
        except (OSError, HTTPException) as error:
            connection.close()
            raise gateway.explain(error) from None
        except Refused:
            connection.close()
            raise
        return answer

    def on_connection_close(self) -> None:
        """Cut the connection to the gateway, on which a thread may wait."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(SHUT_RDWR)


class LocalFileHandler(PassingOnHandler):
    """``/sharedkernel/api/local-file?notebook=PATH&name=NAME``: whether a file is beside a notebook of this server."""

    @web.authenticated
    @authorized
    def get(self) -> None:
        """Answer its `path`, and its `size` in bytes; 404 where it is none, a link, hidden, or not below the folder."""
        notebook, name = (PurePosixPath(self.get_query_argument(word)) for word in ("notebook", "name"))
        folder = local_path(self.contents_manager, str(notebook.parent))
        is_below = not (name.is_absolute() or any(part.startswith(".") for part in name.parts))
        try:
            size = _plain_size(folder, name) if is_below else None
        except (OSError, ValueError):  # ValueError: a null byte
            size = None
        if size is None:
            raise web.HTTPError(HTTPStatus.NOT_FOUND)
        self.finish(json.dumps({"path": str(notebook.parent / name), "size": size}))


class CopiesHandler(PassingOnHandler):
    """``/sharedkernel/api/copies``: one copy of a file or a folder, from this server's files to the host's or back."""

    _is_given_up = False
    _shown: dict[str, Any]

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Copy `from` to the path `to`; `to_host` says which of them is there, `overwrite` whether files are replaced.

        Each line of the answer has the `name` of a file, the bytes that are `done` and their `total`; the last one has
        `ended`, and where it was not done `message` and `reason`.
        """
        body = self.get_json_body() or {}
        source, target = body.get("from"), body.get("to")
        if not (isinstance(source, str) and isinstance(target, str) and source and target):
            raise web.HTTPError(HTTPStatus.BAD_REQUEST, "`from` and `to` are no paths.")
        to_host = body.get("to_host") is True
        here = local_path(self.contents_manager, source if to_host else target)
        files = RemoteFiles(self._find_upstream(), self._take)
        may_replace = partial(_may_replace, body.get("overwrite") is True)
        work = partial(_put, files, here, target) if to_host else partial(files.get_tree, source, here)
        self._shown = {}
        async with room_for(self, CopiesHandler):
            copy = asyncio.create_task(to_thread(work, may_replace))
            try:
                while not copy.done():
                    await asyncio.wait([copy], timeout=_PERIOD)
                    self._write_line(self._shown)
                    await self.flush()
                self._write_line({**self._outcome(copy.exception()), "links": len(files.links)})
                await self.finish()
            except StreamClosedError:
                self._is_given_up = True
                await asyncio.wait([copy])
                copy.exception()

    def on_connection_close(self) -> None:
        """Give the copy up."""
        self._is_given_up = True

    def _take(self, name: str, done: int, total: int) -> None:
        """Take the progress, in the copy's thread."""
        if self._is_given_up:
            raise Refused("the copy was given up.", reason="given_up")
        self._shown = {"name": name, "done": done, "total": total}

    def _outcome(self, error: BaseException | None) -> dict[str, Any]:
        """Return the last line."""
        if error is None:
            return {"ended": True}
        if isinstance(error, Refused | GatewayUnreachable):
            return {"ended": True, "message": str(error), "reason": error.reason}
        if isinstance(error, OSError):
            name = safe_text(str(error.filename or self._shown.get("name", "a file")))
            return {"ended": True, "message": f"{name}: {error.strerror or error}.", "reason": "disk"}
        self.log.error("a copy ended unexpectedly", exc_info=error)
        return {"ended": True, "message": "the copy failed; the Jupyter server's log says how.", "reason": "error"}

    def _write_line(self, line: dict[str, Any]) -> None:
        self.write(json.dumps(line) + "\n")


@contextlib.asynccontextmanager
async def room_for(handler: Any, kind: type) -> AsyncIterator[None]:
    """Count a request, each of which has a thread.

    Raises
    ------
    Refused
        When there are as many of its kind as may be.
    """
    counts = handler.settings.setdefault(f"sharedkernel_{kind.__name__}", [0])
    if counts[0] >= _MOST_AT_A_TIME:
        raise Refused(f"{_MOST_AT_A_TIME} requests for the host's files are under way; try again.", reason="busy")
    counts[0] += 1
    try:
        yield
    finally:
        counts[0] -= 1


def local_path(contents: Any, path: str) -> Path:
    """Return the path of one of this server's files.

    Raises
    ------
    Refused
        When it is hidden, not below the folder that the server serves, or when the server serves none.
    """
    if not isinstance(contents, FileContentsManager):
        raise Refused("this Jupyter server's files are in no folder of its machine.", reason="not_allowed")
    place = Path(contents.root_dir).resolve()
    parts = PurePosixPath(path.strip("/")).parts
    found = place.joinpath(*parts)
    try:
        is_below = ".." not in parts and found.resolve().is_relative_to(place)
    except (OSError, RuntimeError, ValueError):  # a loop of links, a null byte
        is_below = False
    if not is_below or (not contents.allow_hidden and any(part.startswith(".") for part in parts)):
        sentence = f"{safe_text(path)} is hidden, or not below the folder that Jupyter serves."
        raise Refused(sentence, reason="not_allowed")
    return found


def name_folders(notebooks: SessionManager) -> None:
    """Have kernels of notebooks on the drive told where these lie on the host; Jupyter tells them of no folder."""
    stock = notebooks.get_kernel_env

    def get_kernel_env(path: str | None, name: Any = None) -> dict[str, str]:
        environment = stock(path, name)
        if path is not None and path.startswith(f"{DRIVE}:"):
            place = PurePosixPath(path.removeprefix(f"{DRIVE}:"))
            notebook = place.parent / (name or place.name)  # JupyterLab makes up the last part of the path
            environment |= {FOLDER_VARIABLE: str(place.parent), "JPY_SESSION_NAME": f"{DRIVE}:{notebook}"}
        return environment

    cast("Any", notebooks).get_kernel_env = get_kernel_env


def _plain_size(folder: Path, name: PurePosixPath) -> int | None:
    """Return the bytes of a regular file below *folder*; None where it is none, or where a link leads to it."""
    path = folder
    for part in name.parts:
        path /= part
        if path.is_symlink():
            return None
    return path.stat().st_size if path.is_file() else None


def _put(files: RemoteFiles, source: Path, target: str, may_replace: Any) -> None:
    """Upload *source*, with the folders that it is to be in."""
    for folder in reversed(PurePosixPath(target).parents[:-1]):
        files.make_folder(str(folder))
    files.put_tree(source, target, may_replace)


def _may_replace(overwrites: bool, name: str) -> bool:
    if not overwrites:
        raise Refused(f"{safe_text(name)} exists.", reason="exists")
    return True


class TerminalHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``/sharedkernel/api/host/terminals/websocket/NAME``."""

    auth_resource = "sharedkernel"

    #: to the gateway, once there is one
    _there: WebSocket | None = None

    def initialize(self, find_upstream: FindUpstream) -> None:
        """Take what every page needs."""
        self._find_upstream = find_upstream

    def set_default_headers(self) -> None:
        """Set none: they make no sense for a websocket."""

    @ws_authenticated
    @authorized("execute")
    async def get(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Accept the websocket."""
        await super().get(*args, **kwargs)

    async def open(self, name: str) -> None:  # type: ignore[override]
        """Join it to the terminal; nothing of the page is read before."""
        super().open(name)
        try:
            self._there = await self._find_upstream().open_websocket(f"/terminals/websocket/{name}")
        except SharedKernelError as error:
            self.log.info("refused %s (%s): %s", self.request.path, error.reason, error)
            await self._refuse(error)
        else:
            self._passing_on = asyncio.create_task(self._pass_on(self._there))

    async def on_message(self, message: str | bytes) -> None:  # type: ignore[override]
        """Pass on what the page says; the next is read once this has left."""
        if self._there is not None:
            with contextlib.suppress(ConnectionClosed):
                await self._there.send(message)

    def on_close(self) -> None:
        """Leave the terminal, which goes on."""
        super().on_close()
        if self._there is not None:
            self._there.end()

    async def _pass_on(self, there: WebSocket) -> None:
        with contextlib.suppress(WebSocketClosedError):
            async for message in there.messages():
                await self.write_message(message)
        self.close(_LOST)

    async def _refuse(self, error: SharedKernelError) -> None:
        if isinstance(error, GatewayUnreachable) or (isinstance(error, GatewayRefused) and error.is_passing):
            self.close(_LOST)
            return
        has_ended = isinstance(error, GatewayRefused) and error.status == 404
        sentence = "This terminal has ended." if has_ended else safe_text(str(error))
        with contextlib.suppress(WebSocketClosedError):
            for message in ["setup", {}], ["stdout", f"{sentence}\r\n"]:
                await self.write_message(json.dumps(message))
        self.close(_ENDED)
