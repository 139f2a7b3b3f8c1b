"""The gateway keeps nothing of a request once it is answered, whoever sent it."""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import websocket

from tests.gateway.conftest import Stack

#: requests of each kind; what was kept of one took 5 to 13 KiB
NUM_REQUESTS = 1000
#: bytes by which the gateway may grow by all of them: allocators keep some of what they freed
MOST_GROWTH = 5 << 20
#: an unknown method each, as long as a line may be
_ODD_METHODS = [f"M{number}{'X' * 20_000}" for number in range(40)]


@contextlib.contextmanager
def connection(stack: Stack) -> Iterator[http.client.HTTPConnection]:
    found = http.client.HTTPConnection(urlsplit(stack.gateway_url).netloc, timeout=60)
    try:
        yield found
    finally:
        found.close()


def ask(stack: Stack, path: str, token: str | None, num_requests: int) -> set[int]:
    """Ask again and again on one connection; return the answers' status."""
    headers = {} if token is None else {"Authorization": f"token {token}"}
    found = set()
    with connection(stack) as line:
        for _ in range(num_requests):
            line.request("GET", path, headers=headers)
            answer = line.getresponse()
            answer.read()
            found.add(answer.status)
            if answer.will_close:
                line.close()
    return found


def listen(stack: Stack, num_requests: int) -> None:
    url = f"ws{stack.gateway_url.removeprefix('http')}/sharedkernel/api/events"
    for _ in range(num_requests):
        socket = websocket.create_connection(url, header=[f"Authorization: token {stack.token('grace')}"], timeout=60)
        socket.recv()
        socket.close()


def ask_all(stack: Stack, num_requests: int) -> None:
    """Send requests of every kind."""
    token = stack.token("grace")
    assert ask(stack, "/api/kernels", token, num_requests) == {200}
    assert ask(stack, "/sharedkernel/api/status", token, num_requests // 4) == {200}
    assert ask(stack, "/no/such/thing", None, num_requests) <= {403, 404}
    assert ask(stack, "/", None, num_requests) <= {200, 302}
    assert ask(stack, "/sharedkernel/api/status", None, num_requests) <= {401, 403}
    assert ask(stack, "/sharedkernel/api/status", "wrong", num_requests) <= {401, 403, 429}
    assert ask(stack, "/metrics", token, 20) <= {200, 403}
    listen(stack, num_requests // 10)


@pytest.mark.heavy
def test_answered_requests_take_no_memory(stack: Stack) -> None:
    """Right tokens, wrong ones and none, pages, websockets, and what is not there."""
    process = stack.gateway.process
    assert process is not None
    gateway = psutil.Process(process.pid)
    ask_all(stack, NUM_REQUESTS)
    before = gateway.memory_info().rss
    ask_all(stack, NUM_REQUESTS)
    assert gateway.memory_info().rss - before < MOST_GROWTH


def test_unknown_methods_are_refused_and_count_as_one(stack: Stack) -> None:
    """Each would be a label of the metrics for ever."""
    log = Path(stack.gateway.log_path)
    before = len(log.read_text())
    with connection(stack) as line:
        for method in _ODD_METHODS:
            line.putrequest(method, "/api/kernels")
            line.endheaders()
            answer = line.getresponse()
            answer.read()
            assert answer.status == 405
            if answer.will_close:
                line.close()
        line.request("GET", "/metrics", headers={"Authorization": f"token {stack.token('ada')}"})
        metrics = line.getresponse().read().decode()
    methods = set(re.findall(r'method="([^"]*)"', metrics))
    assert methods <= {"GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS", "OTHER"}
    assert len(metrics) < 1 << 20
    assert "Traceback" not in log.read_text()[before:]
