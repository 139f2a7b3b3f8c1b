"""The HTTP server: what its guard hides and refuses, and where the system refuses it what it needs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import socket
import urllib.parse
from typing import Any

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.web import Application, RequestHandler

from sharedkernel.gateway.http.server import hide_token, make_http_server
from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack


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
    lowest = os.dup(0)  # of the numbers that are free
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        await loop.sock_connect(client, listening.getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.0\r\n\r\n")
        while len(refusals := [each for each in caplog.records if "no new connection" in each.getMessage()]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not errors
        assert refusals[1].created - refusals[0].created > 0.3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    async with asyncio.timeout(PATIENCE):
        answer = b""
        while chunk := await loop.sock_recv(client, 4096):
            answer += chunk
    assert answer.endswith(b"hello")
    client.close()
    server.stop()


def encoded(word: str) -> str:
    """Return *word* as an address may spell it too."""
    return "".join(f"%{ord(letter):02x}" for letter in word)


async def test_no_log_holds_a_token_that_came_in_an_address(stack: Stack) -> None:
    """Right or wrong, however spelt, as if it were a name, too; by our handlers, Jupyter's, or tornado's own errors."""
    token, before = stack.token("grace"), len(stack.gateway_log())
    guess = token[:-4] + "beef"
    nobody = Client(stack.gateway_url, "")
    for shown, status in ((token, 200), (guess, 403)):
        for name in ("token", encoded("token")):
            for value in (shown, encoded(shown)):
                path = f"/api/kernels?a=1&{name}={value}"
                assert (await nobody.request("GET", path)).status == status, path
    strange = "01234567-89ab-cdef-0123-456789abcdef"
    paths = [f"/api/kernels/{strange}", "/nowhere", f"/api/sessions/{strange}", "/sharedkernel/api/policy"]
    for path in (*paths, f"/api/kernels/{token}", f"/sharedkernel/api/shelves/{token}", f"/nowhere/{guess}"):
        for method in ("GET", "DELETE", "PATCH", "PUT"):
            await nobody.request(method, f"{path}?{encoded('token')}={token}", raw=b"{")
    leading = Client(stack.gateway_url, "")
    leading.headers = {"Referer": f"http://127.0.0.1/lab?token={token}", "Authorization": f"token {guess}"}
    await leading.request("GET", "/api/kernels/x")
    seen = len(stack.gateway_log())
    leading.headers = {"Referer": "http://[", "Authorization": f"token {token}"}  # which is no address
    assert [(await leading.request("GET", path)).status for path in ("/api/kernels", "/nowhere")] == [200, 404]
    from_address = Client(stack.gateway_url, "")
    kernel = await stack.client("grace").start()
    with pytest.raises(Exception, match="403"):
        await from_address.attach(kernel).open()
    for service in (stack.gateway, stack.executor):
        logged = urllib.parse.unquote(service.log_path.read_text())
        assert token.split("-")[2] not in logged
        assert guess.split("-")[2] not in logged
    assert "[secret]" in stack.gateway_log()[before:]
    assert "Traceback" not in stack.gateway_log()[seen:]


def test_a_token_in_the_address_counts_more_than_one_in_the_headers() -> None:
    """As with Jupyter's server; nothing else of the address is lost."""
    line = RequestStartLine("GET", "/api/me?b=%26+x&token=abc&c=", "HTTP/1.1")
    request = HTTPServerRequest(start_line=line, headers=HTTPHeaders({"Host": "h", "Authorization": "token other"}))
    hide_token(request)
    assert request.uri == "/api/me?b=%26+x&c="
    assert request.headers["Authorization"] == "token abc"
    assert request.arguments == request.query_arguments == {"b": [b"& x"], "c": [b""]}


#: part of whatever a client may choose
_CHOSEN = "zq9"
_LABELS = {"device", "generation", "handler", "implementation", "kind", "le", "major", "method", "minor", "patchlevel"}
_LABELS |= {"reason", "state", "status_code", "type", "user", "version"}


async def test_no_label_of_the_metrics_is_what_a_client_has_chosen(stack: Stack) -> None:
    """So all sets of them are finite: methods, paths, names, tokens and queries make no new ones, nor a long log."""
    ada, before = stack.client("ada"), len(stack.gateway_log())
    strange = [f"{_CHOSEN.upper()}{number}{'X' * 20_000}" for number in range(2)]  # as long as a line may be
    for client in (ada, stack.client("grace"), Client(stack.gateway_url, _CHOSEN), Client(stack.gateway_url, "")):
        for path in ("", "api/kernels/", "api/sessions/", "sharedkernel/api/", "sharedkernel/page/", "api/kernels?a="):
            for method in ("GET", "POST", "DELETE", *strange):
                answer = await client.request(method, f"/{path}{_CHOSEN}", raw=b"{}")
                assert answer.status == 405 or method not in strange, (method[:9], path)
        await client.request("POST", "/api/kernels", {"name": _CHOSEN, "path": _CHOSEN})
    text = str((await ada.request("GET", "/metrics")).body)
    assert _CHOSEN not in text.lower()
    assert "http_request_duration_seconds" in text
    assert set(re.findall(r'(\w+)="', text)) <= _LABELS
    assert set(re.findall(r'user="([^"]*)"', text)) <= set(stack.users)
    assert set(re.findall(r'method="([^"]*)"', text)) <= {"GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OTHER"}
    assert "Traceback" not in stack.gateway_log()[before:]


async def test_only_requests_for_this_host_are_answered(stack: Stack) -> None:
    """A page that leads its own name here (DNS rebinding) reaches nothing, not even with a token; it is told why."""
    client = stack.client("grace")
    for host in ("127.0.0.1", "localhost:8585", "LOCALHOST", "[::1]:8585", "127.9.9.9"):
        client.headers["Host"] = host
        assert (await client.request("GET", "/api/kernels")).status == 200, host
    for host in ("evil.example", "evil.example:8585", "127.0.0.1.evil.example", "10.0.0.1", "localhost."):
        client.headers["Host"] = host
        for path in ("/api/kernels", "/healthz", "/nowhere"):
            answer = await client.request("GET", path)
            assert (answer.status, "local_hostnames" in answer.body["message"]) == (403, True), (host, path)


async def test_another_sites_page_may_read_nothing_and_do_nothing_without_a_token(stack: Stack) -> None:
    """No answer invites other origins, and what a browser adds by itself (cookies) opens nothing."""
    page = Client(stack.gateway_url, "")
    page.headers = {
        "Origin": "https://evil.example",
        "Cookie": f"_xsrf=x; username-127-0-0-1={stack.token('grace')}; token={stack.token('grace')}",
        "X-XSRFToken": "x",
    }
    kernel = await stack.client("grace").start()
    for method, path in (
        ("GET", "/api/kernels"), ("POST", "/api/kernels"), ("DELETE", f"/api/kernels/{kernel}"),
        ("PUT", "/sharedkernel/api/quotas"), ("GET", "/sharedkernel/api/status"),
    ):  # fmt: skip
        answer = await page.request(method, path)
        assert answer.status in (403, 404), (method, path)
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert (await stack.client("grace").request("GET", f"/api/kernels/{kernel}")).status == 200


async def test_slow_and_oversized_requests_are_ended(stack: Stack) -> None:
    """Headers without end are cut off, and a body longer than allowed is refused before it is read."""
    for sent in (
        b"GET /api/kernels HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Filler: " + b"a" * 200_000,
        b"POST /api/kernels HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999999999999\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        with contextlib.suppress(ConnectionError):  # it may be closed instead
            writer.write(sent)
            await writer.drain()  # which fails, too, where that is not read to its end
            assert (await reader.readline()) in (b"", b"HTTP/1.1 400 Bad Request\r\n")
        writer.close()
