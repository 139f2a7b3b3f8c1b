"""The command ``sharedkernel gateway``: how it starts, and how it does not."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_server.gateway.gateway_client import GatewayClient
from tornado.httpclient import AsyncHTTPClient

from sharedkernel.gateway.app import SharedKernelGateway
from tests.gateway.client import Client
from tests.gateway.conftest import run


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sharedkernel", "gateway", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_has_an_example() -> None:
    """And the options by name."""
    shown = command("--help").stdout
    assert "sharedkernel gateway --identity tokens" in shown
    assert "--runtime-dir" in shown


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    """It does not go to another port by itself: users have written this one down."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = command("--port", str(port), "--runtime-dir", str(tmp_path / "run"))
    assert refused.returncode == 1
    assert refused.stderr.strip().splitlines() == [
        f"sharedkernel: cannot serve on 127.0.0.1, port {port} (Address already in use); "
        "name another with --port, or stop what uses it."
    ]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            "c.SharedKernelGateway.quotas = {'default': {'memory': '8 Gb'}}",
            "line 1: quotas['default']['memory']: '8 Gb'",
        ),
        ("c.SharedKernelGateway.groups = {'x': 'ada'}", "line 1: groups['x'] is 'ada'; write a list"),
        ("c.SharedKernelGateway.identity = 'nobody'", "'nobody'"),
        ("c.IdentityProvider.token = ''", "an empty token would let anybody in"),
        ("c.SharedKernelGateway.quotas = {", "line 1: '{' was never closed"),
    ],
)
def test_a_bad_configuration_is_one_sentence(tmp_path: Path, config: str, sentence: str) -> None:
    """With the line where there is one, and a failing exit code."""
    path = tmp_path / "config.py"
    path.write_text(config)
    refused = command("--config", str(path), "--port", "0", "--runtime-dir", str(tmp_path / "run"))
    assert refused.returncode != 0
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr


def test_wrong_options_exit_with_2() -> None:
    """An unknown option, and a word too many."""
    for arguments in (["--colour", "red"], ["start"]):
        refused = command(*arguments)
        assert refused.returncode == 2, arguments
        assert "sharedkernel gateway --help" in refused.stderr


def test_a_runtime_directory_of_others_is_refused(tmp_path: Path) -> None:
    """What is open to others is no place to meet the executor."""
    (tmp_path / "run").mkdir(mode=0o755)
    refused = command("--runtime-dir", str(tmp_path / "run"), "--port", "0")
    assert refused.returncode == 1
    assert "chmod 700" in refused.stderr


def test_a_single_user_gets_a_token_and_what_to_do_with_it(tmp_path: Path) -> None:
    """The line printed is all that is needed; SIGINT ends the gateway in order, and no token is in its log."""
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
            r"Serving on (\S+); use it with: sharedkernel install --gateway-url \1 --token (\S+)\n", line
        )
        assert found, line
        url, token = found.groups()

        async def scenario() -> None:
            client = Client(url, token)
            assert (await client.request("GET", "/api/me")).body["identity"]["admin"] is True
            answer = await client.request("GET", f"/sharedkernel/api/status?token={token}")
            assert (answer.status, answer.body["reason"]) == (503, "executor_unavailable")
            assert (await Client(url, "wrong").request("GET", f"/api/kernels?token={token}x")).status == 403

        run(scenario())
    finally:
        gateway.send_signal(signal.SIGINT)
        assert gateway.wait(20) == 0
        gateway.stdout.close()
        log.close()
    assert token not in (tmp_path / "log").read_text()
    assert [path.name for path in (tmp_path / "run").iterdir()] == []


def test_every_route_needs_a_token(tmp_path: Path) -> None:
    """No handler that the application has answers a stranger, but for what Jupyter says of itself."""
    public = ("/", "/api", "/robots.txt")

    async def scenario() -> None:
        gateway = SharedKernelGateway()
        gateway.initialize(["--port", "0", "--runtime-dir", str(tmp_path / "run"), "--log-level", "CRITICAL"])
        gateway.executor.keep_connected()
        await asyncio.sleep(0)
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
                refused = answer.code in (302, 400, 403, 404, 405)
                assert refused or (path in public and method in ("GET", "HEAD")), (method, path, answer.code)
        await gateway._cleanup()

    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        run(scenario())
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
    path = re.sub(r"\([^)]*\)|\.\*", "x", path)
    assert re.fullmatch(pattern, path), (pattern, path)
    return path if path.startswith("/") else f"/{path}"
