"""The gateway behind a proxy that encrypts: as the admin guide sets one up, and as people often do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urlencode

import pytest

from sharedkernel.gateway.app import SharedKernelGateway
from sharedkernel.local_stack import free_port
from tests.client.gateway.connect_proxy import ConnectProxy
from tests.client.relay.support import TIMEOUT, Notebook, wait_until
from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.page.browser import FORM, Browser, xsrf_of
from tests.gateway.test_command import in_process
from tests.gateway.test_tls import issue

GUIDE = Path(__file__).parents[3] / "docs" / "admin-guide.md"
#: of the guide's blocks
HOST = "gpu.example.org"
SENTENCE = "the proxy has to pass the header Host on as it is"


async def test_a_page_behind_a_proxy_that_names_another_host_is_told_so(stack: Stack) -> None:
    """A request with the gateway's own address as its host and the public one as its page's, as nginx sends it."""
    foreign = {"Origin": f"https://{HOST}"}

    browser = Browser(stack.gateway_url)
    form = await browser.request("GET", FORM)
    fields = {"token": stack.token("ada"), "_xsrf": xsrf_of(form.body)}
    refused = await browser.request("POST", FORM, fields, form=True, **foreign)
    assert refused.status == 403
    assert SENTENCE in refused.body
    assert refused.headers["Content-Type"].startswith("text/html")
    await browser.sign_in(stack.token("ada"))
    for path in ("/sharedkernel/page/sign-out", "/api/kernels"):
        refused = await browser.request("POST", path, **foreign)
        assert (refused.status, refused.body["reason"]) == (403, "not_allowed")
        assert f"a page at https://{HOST}, but asks for 127.0.0.1:" in refused.body["message"]
        assert SENTENCE in refused.body["message"]
    assert (await browser.request("GET", "/")).status == 200  # it is signed in still
    named = await browser.request("GET", FORM, Host="upstream_of_nginx")
    assert named.status == 403
    assert "has to pass the header Host on" in named.body["message"]
    # A token is no cookie, which a browser adds to what any page asks for.
    client = Client(stack.gateway_url, stack.token("ada"))
    client.headers |= foreign
    assert (await client.request("GET", "/api/kernels")).status == 200


def test_the_base_url_without_its_slash_leads_to_the_page(tmp_path: Path) -> None:
    """As people type it; without an executor."""

    async def scenario(gateway: SharedKernelGateway) -> None:
        await asyncio.sleep(0)  # it binds its port in the loop's first round
        browser = Browser(f"http://127.0.0.1:{gateway.port}")
        for path, place in (
            ("/team/gpu", "/team/gpu/"), ("/team/gpu?a=b", "/team/gpu/"), ("/team/gpu/", f"/team/gpu{FORM}"),
        ):  # fmt: skip
            answer = await browser.request("GET", path)
            assert (answer.status, answer.headers["Location"]) == (302, place)
        for path in ("/team/gpus", "/"):
            assert (await browser.request("GET", path)).status == 404

    with in_process("--ServerApp.base_url=/team/gpu", directory=tmp_path) as (gateway, loop):
        loop.run(scenario(gateway))


# --- real proxies -----------------------------------------------------------------------------------------------------


def guides_block(language: str, begin: str = "") -> str:
    """Return a block of the admin guide."""
    found = re.search(rf"^```{language}\n({begin}.+?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def configuration(language: str, gateway: int, port: int, directory: Path) -> str:
    """Return a proxy's configuration from the admin guide, with this test's ports and certificate."""
    block = guides_block(language).replace("127.0.0.1:8585", f"127.0.0.1:{gateway}").replace("/etc/ssl", str(directory))
    return block.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace(f"{HOST} {{", f"{HOST}:{port} {{")


@contextlib.contextmanager
def real_proxy(name: str, block: str, port: int, directory: Path) -> Iterator[None]:
    """Run nginx or Caddy with *block*, on *port*."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"{name} is not installed")
    config = directory / f"{name}-{port}"
    if name == "nginx":
        places = "\n".join(
            f"{kind}_temp_path {directory / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.geteuid() == 0 else ""
        config.write_text(
            f"{user} daemon off; worker_processes 1; pid {config}.pid; events {{}}\n"
            f"http {{ access_log off;\n{places}\n{block} }}\n"
        )
        command = [program, "-p", str(directory), "-e", "stderr", "-c", str(config)]
    else:
        config.write_text(f"{{\n admin off\n auto_https off\n default_bind 127.0.0.1\n}}\n{block}")
        command = [program, "run", "--adapter", "caddyfile", "--config", str(config)]
    with (directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"HOME": str(directory)})
    try:
        wait_until(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (directory / f"{name}.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


class Public:
    """A browser that knows the public address, which :class:`ConnectProxy` alone resolves."""

    def __init__(self, url: str, ca_file: str, tunnel: ConnectProxy) -> None:
        self.url = url
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({"https": tunnel.url}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)),
            urllib.request.HTTPCookieProcessor(),
        )

    def open(self, path: str, data: bytes | None = None, **headers: str) -> HTTPResponse:
        """Ask for *path*; the answer is the caller's to close, whatever its status."""
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            answer: HTTPResponse = self._opener.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            return error  # type: ignore[return-value]
        return answer

    def sign_in(self, token: str, **headers: str) -> tuple[int, str]:
        """Fill in the form; return the status of the answer at the end, and its text."""
        with self.open(FORM) as form:
            data = urlencode({"token": token, "_xsrf": xsrf_of(form.read().decode())}).encode()
        with self.open(FORM, data, Origin=self.url, **headers) as answer:
            return answer.status, answer.read().decode()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Path]]:
    """Run a stack that is set up as the guide says, and write a certificate for the public name."""
    directory = tmp_path_factory.mktemp("proxy")
    issue(directory, HOST)
    settings = guides_block("python", r"c\.ServerApp\.local_hostnames ")
    with Stack(users=["ada"], capacity="1GiB", config=settings) as stack:
        yield stack, directory


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")
@pytest.mark.parametrize(("name", "language"), [("nginx", "nginx"), ("caddy", "caddyfile")])
def test_everything_passes_the_guides_proxy(
    name: str, language: str, proxied: tuple[Stack, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signing in, the stream of figures, long requests, and a notebook's cells; nobody's address is made up."""
    stack, directory = proxied
    port, token, ca_file = free_port(), stack.token("ada"), str(directory / "ca.pem")
    url = f"https://{HOST}:{port}"
    block = configuration(language, stack.port, port, directory)
    with real_proxy(name, block, port, directory), ConnectProxy({HOST: "127.0.0.1"}) as tunnel:
        browser = Public(url, ca_file, tunnel)
        forged = {"X-Real-IP": "192.0.2.1", "X-Forwarded-For": "192.0.2.1", "X-Scheme": "http"}
        status, page = browser.sign_in(token, **forged)
        assert (status, 'id="page"' in page or "was not built" in page) == (200, True)
        audit = (stack.runtime_directory / "audit.jsonl").read_text()
        assert '"action": "sign in"' in audit
        assert "192.0.2.1" not in audit
        with browser.open("/sharedkernel/page/me") as me:
            assert f"--gateway-url {url} --user" in json.load(me)["install_command"]
        with browser.open("/sharedkernel/page/figures") as figures:
            assert figures.headers["Content-Type"] == "text/event-stream"
            assert b"device" in figures.readline()
        with browser.open(
            "/api/kernels", json.dumps({"name": 1, "path": "x" * 1_000_000}).encode(), Authorization=f"token {token}"
        ) as long:
            assert (long.status, json.load(long)["reason"]) == (400, "bad_request")
        monkeypatch.setenv("SSL_CERT_FILE", ca_file)
        monkeypatch.setenv("HTTPS_PROXY", tunnel.url)
        monkeypatch.setenv("JUPYTER_PATH", str(stack.kernels_directory.parent))
        with Notebook(url, token) as notebook:
            assert notebook.run(f"x = {'1' * 2_000_000!r}; print(len(x))").text() == "2000000\n"
            assert len(notebook.run("print('y' * 3_000_000)").text()) == 3_000_001
            notebook.restart()
            assert notebook.run("print('x' in globals())").text() == "False\n"
        assert set(tunnel.connected) == {f"{HOST}:{port}"}
