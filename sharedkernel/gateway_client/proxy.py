"""The proxy on the way to a gateway, from the environment variables that other programs heed, too.

``HTTPS_PROXY`` or ``HTTP_PROXY`` (by the gateway's address), else ``ALL_PROXY``, names it; ``NO_PROXY`` lists the hosts
that are reached without one, as this machine always is. Each may be in lower case. Every connection is a tunnel
(``CONNECT``): encryption and websockets pass as if there were no proxy, and it sees no token of an encrypted gateway.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import ipaddress
import os
import socket
from urllib.parse import SplitResult, unquote, urlsplit


class ProxyError(OSError):
    """The proxy gives no way to the gateway; its text says which proxy it is, and why."""


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine under an address that no other can reach; "" stands for all addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def open_tunnel(host: str, port: int, *, is_encrypted: bool, seconds: float) -> socket.socket | None:
    """Return a socket that the environment's proxy has connected to a server; None: no proxy is to be used.

    Parameters
    ----------
    host, port
        Of the server.
    is_encrypted
        Whether its address begins with ``https://``.
    seconds
        To wait for the proxy.

    Raises
    ------
    ProxyError
        When the proxy cannot be used, does not answer or refuses.
    """
    named = _named_proxy(host, port, "https" if is_encrypted else "http")
    if named is None:
        return None
    variable, address = named
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
        async with asyncio.timeout(seconds):
            return await _connect(proxy, proxy_port, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except TimeoutError:
        why = f"does not answer within {seconds:g} s"
    except ProxyError as error:
        why = str(error)
    except OSError as error:
        # asyncio's text names the address, too
        why = f"cannot be reached ({os.strerror(error.errno or 0) if error.errno in errno.errorcode else error})"
    except (EOFError, asyncio.LimitOverrunError):
        why = "does not answer in HTTP"
    raise ProxyError(f"the proxy {proxy.hostname}:{proxy_port}, which {variable} names, {why}; {without}")


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


async def _connect(proxy: SplitResult, port: int, server: str) -> socket.socket:
    """Return a socket at whose other end is *server*, ``HOST:PORT``."""
    lines = [f"CONNECT {server} HTTP/1.1", f"Host: {server}"]
    if proxy.username is not None:
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(credentials).decode()}")
    reader, writer = await asyncio.open_connection(proxy.hostname, port)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        # Nothing follows it yet: with TLS as with HTTP, the client begins.
        head = await reader.readuntil(b"\r\n\r\n")
        version, status, phrase = (*head.decode("latin-1").partition("\r\n")[0].split(" ", 2), "", "")[:3]
        if not version.startswith("HTTP/1."):
            raise ProxyError("does not answer in HTTP")
        if status == "407":
            raise ProxyError("wants a name and a password: write http://NAME:PASSWORD@ before its host")
        if not status.startswith("2"):
            raise ProxyError(f"answers {status} {phrase[:80]}".rstrip())
        connected: socket.socket = writer.get_extra_info("socket").dup()
        return connected
    finally:
        writer.close()
