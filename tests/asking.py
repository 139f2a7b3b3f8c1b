"""Requests to a gateway or to a Jupyter server, one after the other, and a server that answers all in the same way."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    #: JSON if it is any, else text
    body: Any


def ask(url: str, token: str | None, method: str = "GET", body: Any = None, *, timeout: float = 60.0) -> Answer:
    """Return what a server answers to one request, also if it refuses.

    Parameters
    ----------
    url
        All of it.
    token
        Of the user; None: without one.
    method, body
        Of the request; the body is sent as JSON.
    timeout
        Seconds that the answer may take, on a busy machine.
    """
    headers = {} if token is None else {"Authorization": f"token {token}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return Answer(answer.status, _read(answer.read()))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _read(error.read()))


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


@contextlib.contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[str]:
    """Answer each request in the same way; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
