"""Serves the gateway's built page with the figures that a test wants, and records what the page asks for."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tornado.web import Application, RequestHandler, StaticFileHandler

import sharedkernel
from sharedkernel.local_stack import free_port

STATIC = Path(sharedkernel.__file__).parent / "gateway" / "page" / "static"
#: as strict as the gateway's
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Shared GPU</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/sharedkernel/page/static/page.css">
</head>
<body><div id="page"></div><script src="/sharedkernel/page/static/page.js"></script></body>
</html>
"""
_XSRF = "2|known|to|both"


class PageServer:
    """A server in a thread of its own; use it as a context manager."""

    def __init__(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        #: the answer to which user is signed in
        self.me: dict[str, Any] = {}
        self.quotas: dict[str, Any] = {"users": {}}
        self.history: dict[str, Any] | None = None
        self.classes: dict[str, Any] = {"classes": {}}
        self.policy: dict[str, Any] = {"policy": "fair", "policies": ["fair", "fifo"]}
        self.timeline: dict[str, Any] = {"devices": []}
        self.audit: dict[str, Any] = {"entries": [], "older": False, "file": None}
        #: the people that the page searched for in the audit log
        self.searched: list[str] = []
        #: seconds and end of each timeline that the page asked for
        self.windows: list[tuple[float, float | None]] = []
        #: method, path and body of each request that changes something
        self.requests: list[tuple[str, str, Any]] = []
        #: the sentence that refuses such requests; None: they are served
        self.refusal: str | None = None
        #: parts of addresses; with any, only requests to such ones are refused
        self.refused: list[str] = []
        self._port = port
        self._said = ""
        self._changed: asyncio.Condition
        self._ended: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def say(self, document: str) -> None:
        """Send a status document from now on."""

        async def send() -> None:
            async with self._changed:
                self._said = document
                self._changed.notify_all()

        asyncio.run_coroutine_threadsafe(send(), self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.say("")  # ends all streams of figures
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Condition()
        self._ended = asyncio.Event()
        server = self._application().listen(self._port, "127.0.0.1")
        self._ready.set()
        await self._ended.wait()
        server.stop()
        await server.close_all_connections()

    def _application(self) -> Application:
        server = self

        class Handler(RequestHandler):
            def set_default_headers(self) -> None:
                self.set_header("Content-Security-Policy", _POLICY)

            def check_xsrf_cookie(self) -> None:
                if self.request.headers.get("X-XSRFToken") != _XSRF:
                    self.send_error(403)

            def change(self, *_: str) -> None:
                body = json.loads(self.request.body) if self.request.body else None
                server.requests.append((self.request.method or "", self.request.uri or "", body))
                is_refused = not server.refused or any(part in (self.request.uri or "") for part in server.refused)
                if server.refusal is not None and is_refused:
                    self.set_status(409)
                    self.finish({"message": server.refusal})

        class Page(Handler):
            def get(self) -> None:
                self.set_cookie("_xsrf", _XSRF)
                self.finish(_PAGE)

        class Told(Handler):
            def initialize(self, name: str) -> None:
                self.name = name

            def get(self) -> None:
                if (told := getattr(server, self.name)) is None:
                    self.set_status(404)
                else:
                    self.finish(told)

        class Figures(Handler):
            async def get(self) -> None:
                self.set_header("Content-Type", "text/event-stream")
                while said := server._said:
                    self.write(f"data: {said}\n\n")
                    await self.flush()
                    async with server._changed:
                        while server._said is said:
                            await server._changed.wait()

        class Timeline(Handler):
            def get(self) -> None:
                end = self.get_query_argument("end", None)
                seconds = float(self.get_query_argument("seconds"))
                server.windows.append((seconds, None if end is None else float(end)))
                self.finish(server.timeline)

        class Audit(Handler):
            def get(self) -> None:
                server.searched.append(self.get_query_argument("user"))
                self.finish(server.audit)

        class Quotas(Told):
            def put(self) -> None:
                self.change()
                if server.refusal is None:
                    self.finish(server.quotas)

            delete = put

        class Token(Handler):
            def post(self) -> None:
                self.change()
                self.finish({"token": "a-fresh-token"})

        class Change(Handler):
            post = delete = Handler.change

        return Application(
            [
                (r"/", Page),
                (r"/sharedkernel/page/static/(.*)", StaticFileHandler, {"path": str(STATIC)}),
                (r"/sharedkernel/page/me", Told, {"name": "me"}),
                (r"/sharedkernel/page/figures", Figures),
                (r"/sharedkernel/page/token", Token),
                (r"/sharedkernel/api/history", Told, {"name": "history"}),
                (r"/sharedkernel/api/class", Told, {"name": "classes"}),
                (r"/sharedkernel/api/timeline", Timeline),
                (r"/sharedkernel/api/audit", Audit),
                (r"/sharedkernel/api/quotas", Quotas, {"name": "quotas"}),
                (r"/sharedkernel/api/policy", Told, {"name": "policy"}),
                (r"/sharedkernel/api/sessions/[^/]+/(?:offload|attach|ask-for-room)", Change),
                (r"/api/kernels/[^/]+(?:/interrupt)?", Change),
            ],
            xsrf_cookies=True,
        )
