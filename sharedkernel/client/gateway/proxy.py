"""The way to a gateway: directly, or by the proxy that the environment names.

``HTTPS_PROXY`` or ``HTTP_PROXY`` (by the gateway's address), else ``ALL_PROXY``, names it; ``NO_PROXY`` lists the hosts
that are reached without one, as this machine always is. Each may be in lower case. Every connection is a tunnel
(``CONNECT``): encryption and websockets pass as if there were no proxy, and it sees no token of an encrypted gateway.
"""

from __future__ import annotations

import base64
import errno
import ipaddress
import os
import socket
from http.client import HTTPException, HTTPResponse
from urllib.parse import SplitResult, unquote, urlsplit


class ProxyError(OSError):
    """The proxy gives no way to the gateway; its text says which proxy it is, and why."""


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine under an address that no other can reach; "" stands for all addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connect(host: str, port: int, *, is_encrypted: bool, seconds: float, uses_proxy: bool = True) -> socket.socket:
    """Return a socket with a server at its other end; blocks until then.

    Parameters
    ----------
    host, port
        Of the server.
    is_encrypted
        Whether its address begins with ``https://``.
    seconds
        To wait for the server, or for the proxy.
    uses_proxy
        Whether the environment's proxy is used, if there is one.

    Raises
    ------
    OSError
        When that fails; :class:`.ProxyError` when it is the proxy that cannot be used, does not answer or refuses.
    """
    named = _named_proxy(host, port, "https" if is_encrypted else "http") if uses_proxy else None
    if named is not None:
        return _connect_by_proxy(*named, host, port, seconds)
    try:
        return socket.create_connection((host, port), seconds)
    except TimeoutError:
        raise OSError(f"no connection within {seconds:g} s") from None


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
        why = f"cannot be reached ({os.strerror(error.errno or 0) if error.errno in errno.errorcode else error})"
    raise ProxyError(f"the proxy {proxy.hostname}:{proxy_port}, which {variable} names, {why}; {without}")


def _open_tunnel(connection: socket.socket, proxy: SplitResult, server: str) -> None:
    """Have the proxy at the other end of *connection* connect it to *server*, ``HOST:PORT``."""
    lines = [f"CONNECT {server} HTTP/1.1", f"Host: {server}"]
    if proxy.username is not None:
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(credentials).decode()}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    # Nothing follows its answer yet: with TLS as with HTTP, the client begins.
    answer = HTTPResponse(connection, method="CONNECT")
    try:
        answer.begin()
    finally:
        answer.close()
    if answer.status == 407:
        raise ProxyError("wants a name and a password: write http://NAME:PASSWORD@ before its host")
    if not 200 <= answer.status < 300:
        raise ProxyError(f"answers {answer.status} {answer.reason[:80]}".rstrip())
