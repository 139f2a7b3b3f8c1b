"""The route behind the panel's form: what it takes, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from sharedkernel.client.gateway.credentials import TOKEN_VARIABLE, URL_VARIABLE
from sharedkernel.client.gateway.server import fingerprint_of
from sharedkernel.local_stack import LocalStack
from tests.cli.support import start_session
from tests.client.extension.fake_gateway import FakeGateway
from tests.client.extension.server import PATIENCE, TOKEN, JupyterServer, is_connected
from tests.command import run_apart
from tests.gateway.test_tls import issue

_ROUTE = "/sharedkernel/api/gateway"


def kept(server: JupyterServer) -> list[Path]:
    """Return what the form has written into the configuration."""
    return sorted((server.config / "sharedkernel").glob("*"))


def test_a_connected_gateway_is_there_at_once_and_leaves_nothing(stack: LocalStack, server: JupyterServer) -> None:
    """The kernel is in the launcher, the page has figures, and nobody but the user can read the token.

    Once disconnected there is no kernel, address or token, and pages that are open see no figures any more.
    """
    assert server.ask("GET", _ROUTE).body == {"url": "", "decided": None}
    assert "shared-gpu" not in server.ask("GET", "/api/kernelspecs").body["kernelspecs"]
    token = stack.token("grace")
    with server.page() as page:
        page.wait(lambda view: view["gateway"]["state"] == "unconfigured")
        typed = {"url": f" {stack.gateway_url}/#connect", "token": f"{token}\n"}
        answer = server.ask("POST", _ROUTE, typed)
        assert answer.status == 204, answer
        assert page.wait(is_connected)["user"]["name"] == "grace"
    (file,) = kept(server)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {"gateway_url": stack.gateway_url, "token": token}
    assert "shared-gpu" in server.ask("GET", "/api/kernelspecs").body["kernelspecs"]
    answer = server.ask("GET", _ROUTE)
    assert answer.body == {"url": stack.gateway_url, "decided": None}
    assert token not in server.service.log_path.read_text()
    with server.page() as page:
        page.wait(is_connected)
        assert server.ask("DELETE", _ROUTE, token=None).status == 403
        assert server.ask("DELETE", _ROUTE).status == 204
        view = page.wait(lambda view: view["gateway"]["state"] == "unconfigured")
        assert (view["user"], view["status"]) == (None, None)
        assert kept(server) == []
        assert "shared-gpu" not in server.ask("GET", "/api/kernelspecs").body["kernelspecs"]
        assert server.ask("POST", _ROUTE, {**typed, "token": stack.token("ada")}).status == 204
        assert page.wait(is_connected)["user"]["name"] == "ada"


@pytest.mark.parametrize(
    ("changed", "field", "sentence"),
    [
        ({"url": "gpu.example.org"}, "url", "is not a gateway's address"),
        ({"url": "http://127.0.0.1:9/?token=a-secret"}, "url", "holds more than a gateway's address"),
        ({"url": "http://127.0.0.1:9"}, "url", "no gateway answers"),
        ({"token": " "}, "token", "copy it again, whole"),
        ({"token": "a-secret-of-somebody-else"}, "token", "does not accept this token"),
        ({"url": "https://127.0.0.1:9", "fingerprint": "12:34"}, "fingerprint", "is no SHA-256 fingerprint"),
        ({"token": "a-secret" * 1000}, "", "too long"),
    ],
)
def test_what_is_wrong_is_told_beside_its_field(
    stack: LocalStack, server: JupyterServer, changed: Mapping[str, str], field: str, sentence: str
) -> None:
    """Nothing is kept then, and the log has nothing that was typed."""
    typed = {"url": stack.gateway_url, "token": stack.token("grace"), **changed}
    answer = server.ask("POST", _ROUTE, typed)
    assert (answer.status, answer.body["field"]) == (400, field), answer
    assert sentence in answer.body["message"]
    assert kept(server) == []
    assert "a-secret" not in server.service.log_path.read_text()


def test_a_body_of_another_kind_is_refused(server: JupyterServer) -> None:
    """It is not this server's fault."""
    for body in (None, [], {"url": 7, "token": {}}):
        assert server.ask("POST", _ROUTE, body).status == 400


def test_an_unknown_certificate_is_compared_before_the_token_is_shown(server: JupyterServer, tmp_path: Path) -> None:
    """Without its fingerprint, and with another one, the gateway sees no token."""
    files = issue(tmp_path / "tls")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    first = Path(files.certificate).read_text().split("-----END")[0] + "-----END CERTIFICATE-----\n"
    fingerprint = fingerprint_of(ssl.PEM_cert_to_DER_cert(first))
    with FakeGateway(encryption=context) as gateway:
        typed = {"url": gateway.url, "token": "any"}
        for known, sentence in (("", "no authority that this computer knows"), ("0" * 64, "another certificate")):
            answer = server.ask("POST", _ROUTE, {**typed, "fingerprint": known})
            assert answer.status == 400
            assert answer.body["field"] == "fingerprint"
            assert answer.body["fingerprint"] == fingerprint
            assert sentence in answer.body["message"]
        assert (gateway.shown, kept(server)) == ([], [])
        shown = ":".join(fingerprint[at : at + 2] for at in range(0, 64, 2)).upper()
        answer = server.ask("POST", _ROUTE, {**typed, "fingerprint": shown})
        assert answer.status == 204, answer
        assert gateway.shown == ["token any"]
        assert [file.name for file in kept(server)] == ["shared-gpu.json", "shared-gpu.pem"]
        # it is trusted from now on, such as with the next token
        assert server.ask("POST", _ROUTE, {**typed, "token": "another"}).status == 204


def test_a_token_goes_nowhere_else(server: JupyterServer) -> None:
    """A gateway that redirects is none."""
    with FakeGateway() as thief, FakeGateway(sends_to=f"{thief.url}/api/kernelspecs") as gateway:
        answer = server.ask("POST", _ROUTE, {"url": gateway.url, "token": "any"})
        assert (answer.status, answer.body["field"]) == (400, "url")
        assert (gateway.shown, thief.shown, kept(server)) == (["token any"], [], [])


def test_no_other_site_connects_this_server(server: JupyterServer) -> None:
    """It takes the server's own login, and of a browser the token against forged requests."""
    with FakeGateway() as gateway:
        body = {"url": gateway.url, "token": "any"}
        assert server.ask("POST", _ROUTE, body, token=None).status == 403
        jar = CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        for path in ("login", f"api/status?token={TOKEN}"):
            opener.open(f"{server.url}/{path}", timeout=PATIENCE).close()
        assert _post(opener, server, body) == 403
        assert (gateway.shown, kept(server)) == ([], [])
        xsrf = next(cookie.value for cookie in jar if cookie.name == "_xsrf")
        assert _post(opener, server, body, {"X-XSRFToken": str(xsrf), "Origin": "https://evil.example"}) in (403, 404)
        assert (gateway.shown, kept(server)) == ([], [])
        assert _post(opener, server, body, {"X-XSRFToken": str(xsrf)}) == 204


def _post(
    opener: urllib.request.OpenerDirector, server: JupyterServer, body: object, headers: Mapping[str, str] = {}
) -> int:
    """Return the status of a request with a browser's cookies."""
    request = urllib.request.Request(server.url + _ROUTE, json.dumps(body).encode(), dict(headers), method="POST")
    try:
        with opener.open(request, timeout=PATIENCE) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.heavy
def test_the_command_removes_what_was_installed(stack: LocalStack, tmp_path: Path) -> None:
    """Kernels of other gateways stay; sessions that go on are named first."""
    places = {f"JUPYTER_{name}_DIR": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_apart(*arguments, **places, **{URL_VARIABLE: "", TOKEN_VARIABLE: ""})

    def files() -> set[str]:
        return {path.name for path in tmp_path.rglob("*") if path.is_file() or path.parent.name == "kernels"}

    token = stack.token("grace")
    for name in ((), ("--name", "shared-gpu-other")):
        assert run("install", "--gateway-url", stack.gateway_url, "--token", token, *name).returncode == 0
    start_session(stack, "grace", path="study.ipynb")
    refused = run("uninstall")
    assert refused.returncode == 1
    assert "you have sessions there" in refused.stderr
    assert "`sharedkernel stop --user grace`" in refused.stderr
    assert {"shared-gpu", "shared-gpu.json"} <= files()
    assert run("stop", "--user", "grace").returncode == 0
    removed = run("uninstall")
    assert removed.returncode == 0, removed.stderr
    assert [line.split("/")[-1] for line in removed.stdout.splitlines()] == ["shared-gpu", "shared-gpu.json"]
    assert not {"shared-gpu", "shared-gpu.json"} & files()
    assert {"shared-gpu-other", "shared-gpu-other.json"} <= files()
    again = run("uninstall")
    assert (again.returncode, again.stdout) == (1, "")
    assert "no kernel 'shared-gpu' here" in again.stderr


def test_where_the_environment_decides_the_form_says_so(ada: JupyterServer) -> None:
    """And nothing is written that would have no effect."""
    decided = ada.ask("GET", _ROUTE).body["decided"]
    assert f"{URL_VARIABLE} and {TOKEN_VARIABLE} in this Jupyter server's environment decide" in decided
    answer = ada.ask("POST", _ROUTE, {"url": "http://127.0.0.1:9", "token": "any"})
    assert (answer.status, answer.body["message"], kept(ada)) == (400, decided, [])
    answer = ada.ask("DELETE", _ROUTE)
    assert (answer.status, answer.body["message"]) == (400, decided)
