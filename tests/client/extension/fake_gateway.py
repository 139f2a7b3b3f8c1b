"""Something that answers like a gateway and says whatever a test wants."""

from __future__ import annotations

import asyncio
import ssl
import threading
from types import TracebackType
from typing import Any, Self

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

from sharedkernel.jupyter.names import machine_digest
from sharedkernel.local_stack import free_port


class FakeGateway:
    """A server in a thread of its own; use it as a context manager.

    Parameters
    ----------
    said
        What each page is sent at first, as it is.
    knows_users
        Whether it has a gateway's routes at all.
    encryption
        Of its connections; None: there is none.
    sends_to
        Where it redirects all requests that check a token; empty: nowhere.
    """

    def __init__(
        self,
        said: str = "",
        *,
        knows_users: bool = True,
        encryption: ssl.SSLContext | None = None,
        sends_to: str = "",
    ) -> None:
        self.port = free_port()
        self.url = f"http{'' if encryption is None else 's'}://127.0.0.1:{self.port}"
        #: what it was shown with the requests that check a token
        self.shown: list[str | None] = []
        self._encryption, self._sends_to = encryption, sends_to
        self._said = said
        self._listeners: set[WebSocketHandler] = set()
        self._routes: list[Any] = self._make_routes() if knows_users else []
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def say(self, text: str) -> None:
        """Send *text* from now on."""

        def send() -> None:
            self._said = text
            for listener in self._listeners:
                listener.write_message(text)

        self._loop.call_soon_threadsafe(send)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _make_routes(self) -> list[Any]:
        gateway = self

        class Fixed(RequestHandler):
            def initialize(self, answer: Any) -> None:
                self.answer = answer

            def get(self) -> None:
                self.finish(self.answer)

        class Kernelspecs(RequestHandler):
            def get(self) -> None:
                gateway.shown.append(self.request.headers.get("Authorization"))
                if gateway._sends_to:
                    self.redirect(gateway._sends_to)
                else:
                    self.finish({"kernelspecs": {"shared-gpu": {}}})

        class Events(WebSocketHandler):
            def open(self, *args: str, **kwargs: str) -> None:
                gateway._listeners.add(self)
                self.write_message(gateway._said)

            def on_close(self) -> None:
                gateway._listeners.discard(self)

        api = "/sharedkernel/api"
        answers = {
            "/api/me": {"identity": {"username": "ada", "admin": True}},
            f"{api}/host": {"machine": machine_digest()},
            f"{api}/quotas": {"users": {"ada": {"memory": {"value": "1GiB"}, "share": {"value": 1.0}}}},
            f"{api}/policy": {"policy": "fair", "devices": {"": "fair"}, "policies": ["fair", "fifo"]},
        }
        fixed = [(path, Fixed, {"answer": answer}) for path, answer in answers.items()]
        return [*fixed, ("/api/kernelspecs", Kernelspecs), (f"{api}/events", Events)]

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = HTTPServer(Application(self._routes), ssl_options=self._encryption)
        server.listen(self.port, "127.0.0.1")
        self._ready.set()
        await self._ended.wait()
        server.stop()
        await server.close_all_connections()
