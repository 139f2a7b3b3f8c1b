"""The address of a gateway, and the way there.

The way is direct, or by the proxy that the environment names: ``HTTPS_PROXY`` or ``HTTP_PROXY`` (by the gateway's
address), else ``ALL_PROXY``; ``NO_PROXY`` lists the hosts that are reached without one, as this machine always is. Each
may be in lower case. Every connection is a tunnel (``CONNECT``): encryption and websockets pass as if there were no
proxy, and it sees no token of an encrypted gateway. Certificates are trusted if an authority that a machine knows has
signed them, or one by one.

Everything here blocks. :func:`in_thread` is for programs with an event loop, and for a relay before it has one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cached_property, partial
from http.client import HTTPException, HTTPResponse
from threading import Event, Thread, Timer
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit

from sharedkernel.errors import ConfigError


class Timeouts(NamedTuple):
    """Seconds for which a client of a gateway waits."""

    #: until one that does not even accept a connection counts as unreachable
    connect: float = 10.0
    #: for the answer to a request, such as for a session or its websocket
    answer: float = 60.0
    #: between a websocket's pings; one on which nothing comes for as long after that is lost
    ping: float = 30.0


USUAL_TIMEOUTS = Timeouts()

_Result = TypeVar("_Result")


class ProxyError(OSError):
    """The proxy gives no way to the gateway; its text says which proxy it is, and why."""


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine under an address that no other can reach; "" stands for all addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _named_proxy(host: str, port: int, scheme: str) -> tuple[str, str] | None:
    """Return the variable that names the proxy on the way to a server, and its address; None: there is none."""
    if is_loopback(host) or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass  # slow to import, and rarely needed

    # `NO_PROXY` may name a host with its port.
    if proxy_bypass(host if ":" in host else f"{host}:{port}"):
        return None
    proxies = getproxies()
    return next(((f"{kind.upper()}_PROXY", proxies[kind]) for kind in (scheme, "all") if kind in proxies), None)


def _connect_by_proxy(variable: str, address: str, host: str, port: int, seconds: float) -> socket.socket:
    without = f"if none is needed, add {host} to NO_PROXY"
    try:
        proxy = urlsplit(address if "://" in address else f"http://{address}")
        if proxy.scheme != "http" or not proxy.hostname or not (proxy_port := proxy.port or 80):
            raise ValueError
    except ValueError:
        raise ProxyError(
            f"{variable} names no proxy that can be used; write it like http://proxy.example.org:3128, or {without}"
        ) from None
    try:
        connection = socket.create_connection((proxy.hostname, proxy_port), seconds)
        try:
            _open_tunnel(connection, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except BaseException:
            connection.close()
            raise
        return connection
    except TimeoutError:
        why = f"does not answer within {seconds:g} s"
    except ProxyError as error:
        why = str(error)
    except HTTPException:
        why = "does not answer in HTTP"
    except OSError as error:
        why = f"cannot be reached ({error.strerror or error})"
    raise ProxyError(f"the proxy {proxy.hostname}:{proxy_port}, which {variable} names, {why}; {without}")


def _open_tunnel(connection: socket.socket, proxy: SplitResult, server: str) -> None:
    """Have the proxy at the other end of *connection* connect it to *server*, ``HOST:PORT``."""
    lines = [f"CONNECT {server} HTTP/1.1", f"Host: {server}"]
    if proxy.username is not None:
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(credentials).decode()}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    # Nothing follows its answer yet: with TLS as with HTTP, the client begins.
    with HTTPResponse(connection, method="CONNECT") as answer:
        answer.begin()
    if answer.status == 407:
        raise ProxyError("wants a name and a password: write http://NAME:PASSWORD@ before its host")
    if not 200 <= answer.status < 300:
        raise ProxyError(f"answers {answer.status} {answer.reason[:80]}".rstrip())


def client_context(ca_file: str | None) -> ssl.SSLContext:
    """Return how connections to a gateway are encrypted.

    Parameters
    ----------
    ca_file
        Path of the certificates (PEM) that are trusted: of authorities, or a gateway's own; None: those that this
        system trusts.

    Raises
    ------
    OSError
        When the file cannot be read as certificates.
    """
    context = ssl.create_default_context(cafile=ca_file)
    # Trust a gateway's own certificate, even if another authority signed it; the default from Python 3.13 on.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 fingerprint of a certificate (DER), in 64 lower-case hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def check_fingerprint(text: str) -> str:
    """Return a fingerprint as :func:`fingerprint_of` writes it; colons, spaces and capitals may be in *text*.

    Raises
    ------
    ConfigError
        When it is none.
    """
    fingerprint = re.sub(r"[:\s]", "", text).lower()
    if not re.fullmatch("[0-9a-f]{64}", fingerprint):
        raise ConfigError(
            f"{text!r} is no SHA-256 fingerprint, which has 64 hexadecimal digits; copy the command from the gateway's "
            "page again, whole."
        )
    return fingerprint


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

    def __init__(self, url: str, make_context: Callable[[], ssl.SSLContext], *, uses_proxy: bool = True) -> None:
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

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """The encryption of the connection; None: there is none."""
        return self._make_context() if self.is_encrypted else None

    def connect(self, seconds: float) -> socket.socket:
        """Return a socket with the server at its other end, and no encryption yet; blocks until then.

        Raises
        ------
        OSError
            When that fails within *seconds*; :class:`.ProxyError` when it is the proxy that cannot be used, does not
            answer or refuses.
        """
        scheme = "https" if self.is_encrypted else "http"
        if self._uses_proxy and (named := _named_proxy(self.host, self.port, scheme)) is not None:
            return _connect_by_proxy(*named, self.host, self.port, seconds)
        try:
            return socket.create_connection((self.host, self.port), seconds)
        except TimeoutError:
            raise OSError(f"no connection within {seconds:g} s") from None

    def connect_encrypted(self, seconds: float) -> socket.socket:
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


@contextlib.contextmanager
def cut_after(seconds: float, connected: socket.socket) -> Iterator[None]:
    """Shut a socket down unless the block ends in time: a timeout of the socket would begin anew with each byte.

    Raises
    ------
    TimeoutError
        When it did not.
    """
    is_late = Event()

    def cut() -> None:
        is_late.set()
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = Timer(seconds, cut)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # its user may have no more threads now
        timer.start()
    try:
        yield
    except (OSError, HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError


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


async def to_thread(work: Callable[..., _Result], *arguments: Any, **named: Any) -> _Result:
    """Return the result of *work*, done as by :func:`in_thread`: `asyncio.to_thread` has the process's end wait."""
    # Not at the top: a relay requests its session before it imports asyncio.
    from asyncio import wrap_future

    return await wrap_future(in_thread(partial(work, *arguments, **named)))
