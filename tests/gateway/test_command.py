"""The command ``sharedkernel gateway``: how it starts, and how it does not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_server.gateway.gateway_client import GatewayClient
from tornado.httpclient import AsyncHTTPClient

from sharedkernel.errors import ConfigError
from sharedkernel.gateway import app as gateway_app
from sharedkernel.gateway.app import SharedKernelGateway
from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import run


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    """It does not go to another port by itself: users have written this one down."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = rf"cannot serve on 127.0.0.1, port {port} \(Address already in use\); name another with --port"
        with pytest.raises(ConfigError, match=sentence), in_process("--port", str(port), directory=tmp_path):
            pass


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("c.IdentityProvider.token = ''", "an empty token would let anybody in"),
        ("c.SharedKernelGateway.quotas = {", "line 1: '{' was never closed"),
        ("", "chmod 700"),
        ("c.SharedKernelGateway.admins = 'ada'", "line 1: admins is 'ada'; it has to be a set."),
        ("c.SharedKernelGateway.tokens_file = '/'\nc.SharedKernelGateway.identity = 'tokens'", "open to other users"),
    ],
)
def test_a_bad_configuration_is_one_sentence(tmp_path: Path, config: str, sentence: str) -> None:
    """With the line where there is one, or with what to do: what is open to others is no place for an executor."""
    (tmp_path / "run").mkdir(mode=0o755 if "chmod" in sentence else 0o700)
    path = tmp_path / "config.py"
    path.write_text(config)
    with pytest.raises(ConfigError, match=re.escape(sentence)), in_process("--config", str(path), directory=tmp_path):
        pass


def test_a_single_user_gets_a_token_and_what_to_do_with_it(tmp_path: Path) -> None:
    """The line printed is all that is needed; SIGINT ends the gateway in order, and no token is in its log.

    There are no classes: it says what to do.
    """
    gateway = subprocess.Popen(
        [sys.executable, "-m", "sharedkernel", "gateway", "--port", "0", "--runtime-dir", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=(log := (tmp_path / "log").open("w")),
        text=True,
    )
    try:
        assert gateway.stdout is not None
        line = gateway.stdout.readline()
        found = re.fullmatch(
            r"Serving on (\S+); open it in a browser.* with: sharedkernel install --gateway-url \1 --token (\S+)\n",
            line,
        )
        assert found, line
        url, token = found.groups()

        async def scenario() -> None:
            client = Client(url, token)
            assert (await client.request("GET", "/api/me")).body["identity"]["admin"] is True
            answer = await client.request("GET", f"/sharedkernel/api/status?token={token}")
            assert (answer.status, answer.body["reason"]) == (503, "executor_unavailable")
            lesson = {"users": ["maria"], "until": "2999-01-01T00:00:00Z"}
            answer = await client.request("PUT", "/sharedkernel/api/class", lesson)
            assert (answer.status, answer.body["reason"]) == (403, "not_allowed")
            assert "start it with `--identity tokens`" in answer.body["message"]
            assert (await Client(url, "wrong").request("GET", f"/api/kernels?token={token}x")).status == 403

        run(scenario())
    finally:
        gateway.send_signal(signal.SIGINT)
        assert gateway.wait(PATIENCE) == 0
        gateway.stdout.close()
        log.close()
    assert token not in (tmp_path / "log").read_text()
    assert list((tmp_path / "run").iterdir()) == []


def test_an_absent_executor_is_told_of_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with the command that starts it; a user, who is elsewhere, is told whom to ask."""
    monkeypatch.setattr(gateway_app, "_EXECUTOR_PATIENCE", 0.0)

    with in_process(directory=tmp_path) as (gateway, loop):
        gateway.log.propagate = True
        with caplog.at_level(logging.WARNING):
            loop.run(gateway._log_absent_executors())
        remedy = f"start one with `sharedkernel executor --runtime-dir {tmp_path / 'run'}`, or wait for it"
        (record,) = caplog.records
        assert record.getMessage().endswith(f"/executor.sock; {remedy}.")
        told = str(gateway.kernel_manager.executors.unavailable())
        assert told.endswith(f"/executor.sock; {remedy}; if this is not your machine, tell whoever runs it.")


def test_every_route_needs_a_token(tmp_path: Path) -> None:
    """No handler that the application has answers a stranger, but for what says nothing of anybody.

    The end closes the database of notebooks' sessions: else Python says, some time, that somebody has left it open.
    """
    pages = ("/sharedkernel/page/sign-in", "/sharedkernel/page/invitation")
    public = ("/api", "/robots.txt", "/favicon.ico", "/healthz", "/readyz", *pages)

    async def scenario(gateway: SharedKernelGateway) -> None:
        await asyncio.sleep(0)  # it binds its port in the loop's first round
        patterns = [rule.matcher.regex.pattern for rule in gateway.web_app.wildcard_router.rules]
        assert any("sharedkernel/api/status" in pattern for pattern in patterns)
        client = AsyncHTTPClient()
        for pattern in patterns:
            path = _example(pattern)
            for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
                answer = await client.fetch(
                    f"http://127.0.0.1:{gateway.port}{path}",
                    method=method,
                    body=b"{}" if method in ("POST", "PUT", "PATCH") else None,
                    raise_error=False,
                    follow_redirects=False,
                )
                refused = answer.code in (302, 400, 401, 403, 404, 405)
                assert refused or (path in public and method in ("GET", "HEAD")), (method, path, answer.code)

    with in_process(directory=tmp_path) as (gateway, loop):
        loop.run(scenario(gateway))
        database = gateway.session_manager.connection
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("SELECT 1")


@contextlib.contextmanager
def in_process(*arguments: str, directory: Path) -> Iterator[tuple[SharedKernelGateway, asyncio.Runner]]:
    """Start a gateway in this process: quicker than the command, and open to be looked into."""
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with asyncio.Runner() as loop:

        async def start() -> SharedKernelGateway:
            gateway = SharedKernelGateway()
            port = () if "--port" in arguments else ("--port", "0")
            gateway.initialize([*port, "--runtime-dir", str(directory / "run"), *arguments])
            return gateway

        try:
            gateway = loop.run(start())
            yield gateway, loop
            loop.run(gateway._cleanup())
        finally:
            GatewayClient.clear_instance()
            for signum, handler in handlers.items():
                signal.signal(signum, handler)


def _example(pattern: str) -> str:
    """Return a path that *pattern* matches."""
    identifier = "01234567-89ab-cdef-0123-456789abcdef"
    path = pattern.removesuffix("$").replace("\\", "").replace("/?", "/")
    path = re.sub(r"\(\?P<(kernel|session)_id>[^)]*\)", identifier, path)
    path = re.sub(r"\((\?P<\w+>)?([a-z.]+)(\|[^)]*)?\)", r"\2", path)  # the first of several words
    path = re.sub(r"\(\?P<port>[^)]*\)", "6006", path)
    path = re.sub(r"\([^)]*\)|\.\*", "x", path)
    assert re.fullmatch(pattern, path), (pattern, path)
    return path if path.startswith("/") else f"/{path}"
