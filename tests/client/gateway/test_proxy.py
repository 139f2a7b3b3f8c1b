"""A gateway that only the environment's proxy reaches, and what is said where the proxy does not let one through."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.server import Timeouts
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.local_stack import free_port
from tests.client.extension.server import JupyterServer, is_connected
from tests.client.gateway.connect_proxy import ConnectProxy
from tests.client.relay.support import Notebook
from tests.command import run_apart
from tests.warm_stack import WarmStack

#: no name server knows it
HOST = "gpu.test.invalid"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_other_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def refusal(url: str = f"http://{HOST}:8585", *, seconds: float = 2.0) -> str:
    """Return why there is neither a status nor a websocket from the gateway at *url*."""
    credentials = Credentials(url=url, token="a-token")
    with pytest.raises((GatewayUnreachable, GatewayRefused)) as refused:
        fetch_status(credentials, timeout=seconds)
    with pytest.raises((GatewayUnreachable, GatewayRefused)) as not_opened:
        asyncio.run(Gateway(credentials, timeouts=Timeouts(connect=seconds)).open("a-kernel", "a-name"))
    assert str(not_opened.value) == str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "all_proxy"])
def test_a_proxy_that_refuses_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its answer and without its password, to commands as to relays."""
    with ConnectProxy(answer=b"HTTP/1.1 403 Not here\r\n\r\n") as proxy:
        monkeypatch.setenv(variable, f"http://ada:secret@127.0.0.1:{proxy.port}/")
        sentence = refusal()
        named = f"the proxy 127.0.0.1:{proxy.port}, which {variable.upper()} names"
        why = f"{named}, answers 403 Not here; if none is needed, add {HOST} to NO_PROXY"
        assert f"no gateway answers at http://{HOST}:8585 ({why})" in sentence


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "http://ada:secret@127.0.0.1:port", "http://"])
def test_an_address_that_no_proxy_has_is_one_sentence(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the address, which may hold a password."""
    monkeypatch.setenv("ALL_PROXY", proxy)
    sentence = refusal()
    assert "(ALL_PROXY names no proxy that can be used; write it like http://proxy.example.org:3128, or" in sentence
    assert "127.0.0.1" not in sentence


def test_a_proxy_that_is_away_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address may lack the scheme, as other programs allow."""
    monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{(port := free_port())}")
    assert f"(the proxy 127.0.0.1:{port}, which ALL_PROXY names, cannot be reached (Connection refused);" in refusal()


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"HTTP/1.1 200 " + bytes(1 << 17)])
def test_an_answer_that_no_proxy_gives_is_one_sentence(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read beyond a bound."""
    with ConnectProxy(answer=answer) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert "does not answer in HTTP" in refusal()


@pytest.mark.heavy
def test_a_proxy_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for as long as for a gateway."""

    async def main() -> str:
        silent: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda reader, writer: silent.append(writer), "127.0.0.1", 0)
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        sentence = await asyncio.to_thread(refusal, seconds=0.5)
        server.close()
        for writer in silent:
            writer.close()
        return sentence

    assert "does not answer within 0.5 s" in asyncio.run(main())


@pytest.mark.parametrize("excepted", [".test.invalid", f"other, {HOST}:8585"])
def test_hosts_of_no_proxy_are_reached_without(excepted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, domain or port: as no name server knows this one, nobody answers."""
    with ConnectProxy({HOST: "127.0.0.1"}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", excepted)
        assert "proxy" not in refusal()
        assert not proxy.connected


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_this_machine_is_reached_without(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says."""
    with ConnectProxy() as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        assert "proxy" not in refusal(f"http://{host}:{free_port()}")
        assert not proxy.connected


class HiddenStack(WarmStack):
    """A stack with TLS, whose gateway is called :data:`HOST`."""

    def __init__(self, directory: Path) -> None:
        authority, files = trustme.CA(), [directory / name for name in ("ca.pem", "gpu.crt", "gpu.key")]
        issued = authority.issue_cert("127.0.0.1", HOST)
        authority.cert_pem.write_to_path(str(files[0]))
        files[1].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(files[2]))
        self.ca_file = str(files[0])
        self.fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode()))
        config = f"c.ServerApp.certfile, c.ServerApp.keyfile = {str(files[1])!r}, {str(files[2])!r}\n"
        config += f"c.ServerApp.local_hostnames = ['localhost', {HOST!r}]\n"
        super().__init__(users=["ada"], capacity="1GiB", config=config)
        self.gateway_url = f"https://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiddenStack]:
    with pytest.MonkeyPatch.context() as patch:
        stack = HiddenStack(tmp_path_factory.mktemp("tls"))
        patch.setenv("SSL_CERT_FILE", stack.ca_file)
        with stack:
            yield stack


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")
def test_commands_relays_and_pages_go_by_the_proxy(
    stack: HiddenStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its name and password: an installation by fingerprint, a status, a cell and the figures of a page."""
    url = f"https://{HOST}:{stack.port}"
    token, fingerprint = stack.token("ada"), stack.fingerprint.hexdigest()
    with ConnectProxy({HOST: "127.0.0.1"}, credentials="ada:p@ss") as proxy:

        def passed() -> int:
            """Return how often it was asked to connect since the last time; a failure if not at all, or elsewhere."""
            seen, proxy.connected = proxy.connected, []
            assert set(seen) == {f"{HOST}:{stack.port}"}
            return len(seen)

        places = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA")}
        for name in ("SHAREDKERNEL_GATEWAY_URL", "SHAREDKERNEL_TOKEN", "JUPYTER_PATH"):
            monkeypatch.delenv(name, raising=False)
        for name, place in places.items():
            monkeypatch.setenv(name, place)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        refused = run_apart("install", "--gateway-url", url, "--token", token, "--user")
        assert "wants a name and a password: write http://NAME:PASSWORD@ before its host" in refused.stderr
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//ada:p%40ss@"))
        install = ["install", "--gateway-url", url, "--token", token, "--user", "--fingerprint", fingerprint]
        installed = run_apart(*install)
        assert installed.returncode == 0, installed.stderr
        assert passed() == 2  # for the certificate, and with it
        assert run_apart("status").returncode == 0
        assert passed() == 1
        with Notebook(None, None) as notebook:
            assert notebook.run("import torch; print(int(torch.arange(9).sum()))").text() == "36\n"
            assert proxy.passed
            assert passed() >= 2  # for the session, and its websocket
        environment = {"SHAREDKERNEL_GATEWAY_URL": url, "SHAREDKERNEL_TOKEN": token}
        server = JupyterServer(tmp_path / "server", environment)
        server.start()
        try:
            proxy.connected = []
            with server.page() as page:
                view = page.wait(is_connected)
            assert view["user"]["name"] == "ada"
            assert passed() >= 2  # for the user, and the feed
        finally:
            server.stop()
