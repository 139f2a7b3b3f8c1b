"""Jupyter's server, cut down to contents, files and terminals, on a unix socket where only a gateway connects.

Nothing of the user's own Jupyter is read: no configuration, no extensions. There is no token and no protection against
other sites' pages, since the gateway has checked both and passes on neither cookies nor the page's origin.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

from jupyter_server.auth import IdentityProvider, User
from jupyter_server.serverapp import ServerApp
from tornado.httpserver import HTTPServer
from traitlets import Unicode, default
from traitlets.config import Config

from sharedkernel.files.uploads import DownloadHandler, UploadHandler, remove_old_parts

#: most seconds between two looks at whether the server is idle
_LOOK = 10.0


class GatewayIdentity(IdentityProvider):
    """Identity of the one user; who connects is the gateway, which has checked the token."""

    user_name = Unicode(config=True)

    async def get_user(self, handler: Any) -> User:  # type: ignore[override]
        """Return the user."""
        handler._token_authenticated = True
        return User(self.user_name)

    def validate_security(self, app: Any, ssl_options: dict[str, Any] | None = None) -> None:
        """Check nothing: there is no token."""


class CountingServer(HTTPServer):
    """An HTTP server that knows for how long it has had no connection."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        """Begin without a connection."""
        super().initialize(*args, **kwargs)
        self._open: set[object] = set()
        self._used = time.monotonic()

    def start_request(self, server_conn: object, request_conn: Any) -> Any:
        """Count a connection."""
        self._open.add(server_conn)
        return super().start_request(server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        """Count a connection no more."""
        self._open.discard(server_conn)
        self._used = time.monotonic()
        super().on_close(server_conn)  # type: ignore[arg-type]

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last connection was closed; 0 while one is open."""
        return 0.0 if self._open else time.monotonic() - self._used


class UserServer(ServerApp):
    """A user's server; `listener` and `idle_seconds` are set before it is initialised."""

    name = "sharedkernel-files"
    default_services = ("contents",)  # type: ignore[assignment]
    listener: socket.socket
    idle_seconds: float

    @default("runtime_dir")
    def _default_runtime_dir(self) -> str:
        return os.environ.get("XDG_RUNTIME_DIR") or str(Path.home())

    @default("cookie_secret")
    def _default_cookie_secret(self) -> bytes:
        return os.urandom(32)

    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]
        """Read no configuration."""

    def start(self) -> None:
        """Serve, without telling anybody where."""
        self.start_ioloop()

    def init_httpserver(self) -> None:
        """Serve from the socket that the executor has made."""
        options = {"max_body_size": self.max_body_size, "max_buffer_size": self.max_buffer_size}
        self._http_server = self._counting = CountingServer(self.web_app, **options)
        self.web_app.add_handlers(".*$", [(r"/sharedkernel/files/(.*)", UploadHandler)])
        self.io_loop.add_callback(self._http_server.add_socket, self.listener)

    async def _post_start(self) -> None:
        await super()._post_start()
        self._tasks = [
            asyncio.create_task(self._end_when_idle()),
            asyncio.create_task(asyncio.to_thread(remove_old_parts, Path(self.root_dir))),
        ]

    async def _end_when_idle(self) -> None:
        server, terminals = self._counting, self.web_app.settings["terminal_manager"].terminals
        while terminals or server.idle_seconds < self.idle_seconds:  # noqa: ASYNC110 (time itself is waited for)
            await asyncio.sleep(min(_LOOK, self.idle_seconds / 4))
        self.stop()


def serve(listener: int, user: str, idle_seconds: float) -> None:
    """Serve the files of this process's account.

    Parameters
    ----------
    listener
        Descriptor of a listening unix socket.
    user
        Name of the gateway's user.
    idle_seconds
        Seconds without a request, a connection and a terminal after which this returns.
    """
    app = UserServer(
        config=Config(
            {
                "GatewayIdentity": {"user_name": user},
                # What is deleted on another machine is not looked for in a trash there, and its room is wanted back.
                "FileContentsManager": {
                    "delete_to_trash": False,
                    "always_delete_dir": True,
                    "files_handler_class": DownloadHandler,
                },
            }
        ),
        log_level="WARN",
        root_dir=str(Path.home()),
        jpserver_extensions={"jupyter_server_terminals": True},
        identity_provider_class=GatewayIdentity,
        allow_remote_access=True,
        disable_check_xsrf=True,
    )
    app.listener, app.idle_seconds = socket.socket(fileno=listener), idle_seconds
    app.listener.setblocking(False)
    app.initialize(argv=[], find_extensions=False)
    app.start()
