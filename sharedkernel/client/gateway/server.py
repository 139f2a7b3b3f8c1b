"""The address of a gateway, and one request to it over a connection of its own (HTTP/1.1, by `http.client`).

Everything here blocks. :func:`in_thread` is for programs with an event loop, and for a relay before it has one.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http.client import HTTPConnection, HTTPException, IncompleteRead
from socket import SHUT_RDWR, socket
from threading import Event, Thread, Timer
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from sharedkernel.client.gateway import proxy
from sharedkernel.client.gateway.trust import client_context

#: most bytes of an answer's body: a status document, a kernel's model, a refusal
MAX_BODY_BYTES = 16 * 1024**2

_Result = TypeVar("_Result")


class Answer(NamedTuple):
    """A gateway's answer to a request."""

    status: int
    phrase: str
    body: bytes


class Server:
    """The address of a gateway, as its URL says.

    Parameters
    ----------
    url
        Begins with ``http://`` or ``https://``; may have a path, but no query.
    make_context
        Returns how an encrypted connection is made.
    uses_proxy
        Whether connections go by the environment's proxy, if there is one.
    """

    def __init__(
        self,
        url: str,
        make_context: Callable[[], ssl.SSLContext] = lambda: client_context(None),
        *,
        uses_proxy: bool = True,
    ) -> None:
        self.url = url
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.is_encrypted = parts.scheme == "https"
        self.port = parts.port or (443 if self.is_encrypted else 80)
        #: what the header Host says
        self.authority = parts.netloc
        self.path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self._make_context = make_context
        self._uses_proxy = uses_proxy
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The encryption of the connection; None: there is none."""
        if self.is_encrypted and self._context is None:
            self._context = self._make_context()
        return self._context

    def connect(self, seconds: float) -> socket:
        """Return a socket with the server at its other end, and no encryption yet; errors are those of `connect`."""
        return proxy.connect(
            self.host, self.port, is_encrypted=self.is_encrypted, seconds=seconds, uses_proxy=self._uses_proxy
        )

    def connect_encrypted(self, seconds: float) -> socket:
        """Return a socket that is encrypted, if the server's address says so."""
        plain = self.connect(seconds)
        if (context := self.context) is None:
            return plain
        try:
            return context.wrap_socket(plain, server_hostname=self.host)
        except TimeoutError:
            raise OSError(f"no encrypted connection within {seconds:g} s") from None
        finally:
            plain.close()  # nothing if `wrap_socket` has taken it over

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        connect_seconds: float,
        seconds: float,
        on_sent: Callable[[], None],
    ) -> Answer:
        """Return the answer to a request; a redirect is an answer, too.

        Parameters
        ----------
        method, path, headers, body
            The request; *path* is relative to the server's and has only the characters that a path may have.
        connect_seconds, seconds
            To wait for a connection, and for the whole answer.
        on_sent
            Called when the request is on its way.

        Raises
        ------
        OSError, http.client.HTTPException
            When there is no answer.
        """
        connection, is_late = HTTPConnection(self.host, self.port), Event()
        connection.sock = sock = self.connect_encrypted(connect_seconds)

        def cut() -> None:
            is_late.set()
            with contextlib.suppress(OSError):
                sock.shutdown(SHUT_RDWR)

        timer = Timer(seconds, cut)  # a timeout of the socket would begin anew with each byte
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # its user may have no more threads now
            timer.start()
        try:
            sock.settimeout(seconds)
            connection.request(
                method, self.path + path, body or None, {"Host": self.authority, "Connection": "close", **headers}
            )
            on_sent()
            with connection.getresponse() as response:
                received = response.read(MAX_BODY_BYTES + 1)
                if len(received) > MAX_BODY_BYTES:
                    raise HTTPException
                if response.length or is_late.is_set():
                    raise IncompleteRead(received)
                return Answer(response.status, response.reason, received)
        except (OSError, HTTPException):
            if is_late.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            connection.close()


def in_thread(work: Callable[[], _Result]) -> Future[_Result]:
    """Begin *work* in a thread of its own, for which the process's end does not wait, and return its result to be."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        Thread(target=run, daemon=True).start()
    except RuntimeError:  # its user may have no more threads now: what waits for this is better off late than lost
        run()
    return future
