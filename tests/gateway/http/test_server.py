"""The HTTP server where the system refuses it what it needs."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from typing import Any

import pytest
from tornado.web import Application, RequestHandler

from sharedkernel.gateway.http.server import make_http_server

PATIENCE = 60.0


class _Hello(RequestHandler):
    def get(self) -> None:
        self.finish("hello")


async def test_connections_wait_while_no_file_can_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    """They are served afterwards; meanwhile the server neither spins nor fills the log."""
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    server = make_http_server(Application([("/", _Hello)]), None, patience=PATIENCE)
    server.listen(0, "127.0.0.1")
    (listening,) = server._sockets.values()
    client = socket.socket()
    client.setblocking(False)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
        filler = _fill()
        await loop.sock_connect(client, listening.getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.0\r\n\r\n")
        while len(refusals := [each for each in caplog.records if "no new connection" in each.getMessage()]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not errors
        assert refusals[1].created - refusals[0].created > 0.3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in filler:
            os.close(each)
    async with asyncio.timeout(PATIENCE):
        answer = b""
        while chunk := await loop.sock_recv(client, 4096):
            answer += chunk
    assert answer.endswith(b"hello")
    client.close()
    server.stop()


def _fill() -> list[int]:
    """Open files until there are no more."""
    files = []
    while True:
        try:
            files.append(os.dup(0))
        except OSError:
            return files
