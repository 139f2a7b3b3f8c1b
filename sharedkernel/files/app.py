"""Jupyter's server, cut down to contents, files and terminals, on a unix socket where only a gateway connects.

Nothing of the user's own Jupyter is read: no configuration, no extensions. There is no token and no protection against
other sites' pages, since the gateway has checked both and passes on neither cookies nor the page's origin.

Uploads can be resumed; stock contents take a file as base64 in one JSON text.
``PUT /sharedkernel/files/PATH?offset=N&total=M`` takes the bytes from N on and, behind them, the SHA-256 of all M bytes
(32 bytes). They go to a hidden file beside the target, which takes its place only when the checksum is right; what has
come of an upload that was cut stays there for a day. With ``overwrite=1`` a file that exists is replaced. ``GET`` says
how far an upload is; with ``sha256=1`` also the file's checksum.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

from jupyter_server.auth import IdentityProvider, User
from jupyter_server.base.handlers import APIHandler, AuthenticatedFileHandler
from jupyter_server.serverapp import ServerApp
from tornado import web
from tornado.httpserver import HTTPServer
from traitlets import Unicode, default
from traitlets.config import Config

from sharedkernel.client.gateway.files import PART_SUFFIX, mode_of, part_of
from sharedkernel.errors import Refused

#: age of a partial upload, in seconds, from which it is removed
_MOST_SECONDS = 24 * 3600.0
_DIGEST_BYTES = hashlib.sha256().digest_size
#: HTTP status of refusals by their reason; of others 409
_STATUSES = {"bad_request": 400, "not_allowed": 403, "no_such_file": 404, "checksum": 422, "disk_full": 507}
#: most entries of the home in which old parts are looked for
_MOST_ENTRIES = 200_000
#: most seconds between two looks at whether the server is idle
_LOOK = 10.0


def remove_old_parts(root: Path) -> None:
    """Remove partial uploads that were not resumed for a day. May take long."""
    left = _MOST_ENTRIES
    for folder, folders, names in os.walk(root):
        left -= len(folders) + len(names)
        for name in names:
            if name.startswith(".") and name.endswith(PART_SUFFIX):
                with contextlib.suppress(OSError):
                    path = os.path.join(folder, name)
                    if os.lstat(path).st_mtime < time.time() - _MOST_SECONDS:
                        os.unlink(path)
        if left < 0:
            return


class Upload:
    """One upload that is being received; blocks.

    Parameters
    ----------
    target
        Path of the file, no link.
    offset, total
        Where the bytes that come begin, and how many the file has in all.
    overwrite
        Whether a file that is there is replaced.

    Raises
    ------
    Refused
        When it cannot be written.
    OSError
        The same, with the system's reason.
    """

    def __init__(self, target: Path, offset: int, total: int, *, overwrite: bool) -> None:
        self._target, self._part, self._overwrite = target, part_of(target), overwrite
        self._check_target()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(self._part, flags, 0o600)
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise Refused(f"{self._part.name} is not yours; remove it.", reason="not_allowed")
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(f"{target.name} is being uploaded already.", reason="busy") from None
            if not 0 <= offset <= min(found.st_size, total):
                sentence = f"{found.st_size} bytes of {target.name} are here, not {offset}; begin there."
                raise Refused(sentence, reason="wrong_offset")
            os.ftruncate(self._fd, offset)
            with open(self._fd, "rb", closefd=False) as file:
                self._hash = hashlib.file_digest(file, "sha256")  # which leaves it at its end
        except BaseException:
            self.close()
            raise
        self._missing, self._digest = total - offset, b""

    def _check_target(self) -> None:
        if self._target.is_dir():
            raise Refused(f"{self._target.name} is a folder there; name a file in it.", reason="is_folder")
        if self._target.exists() and not self._overwrite:
            raise Refused(f"{self._target.name} exists there.", reason="exists")

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        content = memoryview(data)[: self._missing]
        self._digest += data[len(content) :][: _DIGEST_BYTES + 1 - len(self._digest)]
        self._hash.update(content)
        self._missing -= len(content)
        while content:
            content = content[os.write(self._fd, content) :]

    def finish(self) -> None:
        """Put the file where it belongs, once all has come."""
        if self._missing or len(self._digest) != _DIGEST_BYTES:
            raise Refused(f"{self._missing} bytes or the checksum are missing.", reason="bad_request")
        if self._digest != self._hash.digest():
            self.discard()
            raise Refused(
                f"{self._target.name} has changed on its way or since it was begun; upload it again.", reason="checksum"
            )
        self._check_target()
        os.fchmod(self._fd, mode_of(self._target))
        os.replace(self._part, self._target)

    def discard(self) -> None:
        """Remove what has come."""
        self._part.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others go on with it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _checksum(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_target(root: str, path: str) -> Path:
    """Return what *path*, below the home *root*, leads to; a link may lead anywhere that the account may go.

    Raises
    ------
    Refused
        When it is written so that it leads out of the home, or is hidden.
    """
    inside = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
    if inside != "." and any(part.startswith(".") for part in Path(inside).parts):
        raise Refused("files that are hidden or outside of your home are not served.", reason="no_such_file")
    if "\0" in path:
        raise Refused("no file's name contains a null byte.", reason="bad_request")
    return Path(os.path.realpath(path))


class DownloadHandler(AuthenticatedFileHandler):
    """``/files/PATH``: Jupyter's, which serves parts of a file, but follows links wherever the account may go."""

    def validate_absolute_path(self, root: str, absolute_path: str) -> str:
        """Return what is served."""
        try:
            found = find_target(root, absolute_path)
        except Refused as refused:
            raise web.HTTPError(_STATUSES[refused.reason]) from None
        if not found.is_file():
            raise web.HTTPError(404)
        if not os.access(found, os.R_OK):
            raise web.HTTPError(403)
        return str(found)


@web.stream_request_body
class UploadHandler(APIHandler):
    """``/sharedkernel/files/PATH``."""

    _upload: Upload | None = None

    async def prepare(self) -> None:  # type: ignore[override]
        """Open the upload, before its bytes are read."""
        await super().prepare()
        if self.request.method != "PUT":
            return
        try:
            offset, total = (int(self.get_query_argument(name)) for name in ("offset", "total"))
        except ValueError:
            self._refuse(Refused("offset and total are numbers of bytes.", reason="bad_request"))
            return
        self.request.connection.set_max_body_size(max(0, total) + _DIGEST_BYTES + 1)  # type: ignore[union-attr]
        overwrite = self.get_query_argument("overwrite", "0") == "1"
        try:
            target = self._target(self.path_args[0])
            self._upload = await asyncio.to_thread(Upload, target, offset, total, overwrite=overwrite)
        except (OSError, Refused) as error:
            self._refuse(error)

    def _target(self, path: str) -> Path:
        root: str = self.contents_manager.root_dir  # type: ignore[attr-defined]
        return find_target(root, os.path.join(root, path.strip("/")))

    def data_received(self, chunk: bytes) -> None:
        """Write the next bytes of the body."""
        if self._upload is None:
            return
        try:
            self._upload.write(chunk)
        except OSError as error:
            self._upload.discard()
            self._refuse(error)

    async def put(self, path: str) -> None:
        """Put the file that has come in its place."""
        if self._upload is None:
            return
        try:
            self._upload.finish()
        except (OSError, Refused) as error:
            self._refuse(error)
            return
        self.set_status(204)
        self.finish()

    async def get(self, path: str) -> None:
        """Return the file's size (null: there is none) and how much of it has come, and the room on its disk."""
        try:
            target = self._target(path)
            found = target.stat() if target.exists() else None
            part, disk = part_of(target), os.statvfs(target.parent)
            answer: dict[str, Any] = {
                "size": None if found is None else found.st_size,
                "is_folder": target.is_dir(),
                "part": part.lstat().st_size if part.exists() else 0,
                "free": disk.f_bavail * disk.f_frsize,
            }
            if self.get_query_argument("sha256", "0") == "1" and target.is_file():
                answer["sha256"] = await asyncio.to_thread(_checksum, target)
        except (OSError, Refused) as error:
            self._refuse(error)
            return
        self.finish(json.dumps(answer))

    def _refuse(self, error: OSError | Refused) -> None:
        if isinstance(error, OSError):
            error = _explain(error)
        self.on_finish()
        self.set_status(_STATUSES.get(error.reason, 409))
        self.finish(json.dumps({"message": str(error), "reason": error.reason}))

    def on_finish(self) -> None:
        """Let others go on with the upload."""
        if self._upload is not None:
            self._upload.close()
            self._upload = None

    on_connection_close = on_finish


def _explain(error: OSError) -> Refused:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Refused("the disk there is full; remove something and upload it again.", reason="disk_full")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP):
        return Refused(f"your account may not do this there ({error.strerror}).", reason="not_allowed")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Refused("there is no such folder there.", reason="no_such_file")
    return Refused(f"this cannot be done there: {error.strerror}.", reason="not_possible")


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
