"""Gateways that are away, refuse, or are none."""

from __future__ import annotations

import json
import time

import pytest

from sharedkernel.local_stack import LocalStack
from tests.client.extension.fake_gateway import FakeGateway
from tests.client.extension.server import JupyterServer, is_connected


def state(view: dict[str, dict[str, str]]) -> str:
    return view["gateway"]["state"]


def test_a_page_hears_that_the_gateway_is_away_and_back(stack: LocalStack, ada: JupyterServer) -> None:
    """The last figures stay; nobody has to do anything."""
    with ada.page() as page:
        page.wait(is_connected)
        stack.gateway.kill()
        try:
            view = page.wait(lambda view: state(view) == "away" and "no gateway answers" in view["gateway"]["message"])
            assert view["status"] is not None
            assert ada.ask("GET", "/sharedkernel/api/quotas").status == 503
        finally:
            stack.gateway.start()
            stack.gateway.wait_until_ready()
        page.wait(is_connected)


def keep_credentials(server: JupyterServer, url: str, token: str) -> None:
    """Do what ``sharedkernel install`` does."""
    file = server.config / "sharedkernel" / "shared-gpu.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"gateway_url": url, "token": token}))


def test_an_installed_gateway_is_found_without_a_restart(stack: LocalStack, server: JupyterServer) -> None:
    """First the page says what to do; then what was said is mended step by step."""
    with server.page() as page:
        view = page.wait(lambda view: state(view) == "unconfigured")
        assert "sharedkernel install" in view["gateway"]["message"]
        keep_credentials(server, stack.gateway_url, "a-wrong-token")
        view = page.wait(lambda view: state(view) == "refused")
        assert "does not accept this token" in view["gateway"]["message"]
        # Not 403: the page would take it for the end of its own login.
        assert server.ask("GET", "/sharedkernel/api/quotas").status == 502
        keep_credentials(server, stack.gateway_url, stack.token("grace"))
        assert page.wait(is_connected)["user"]["name"] == "grace"


@pytest.mark.heavy
def test_a_token_that_is_not_accepted_is_not_shown_all_the_time(stack: LocalStack, server: JupyterServer) -> None:
    """As after a class, when thirty pages may stay open over night."""
    keep_credentials(server, stack.gateway_url, "a-wrong-token")
    before = stack.gateway.log_path.read_text().count("GET /api/me")
    with server.page() as page:
        page.wait(lambda view: state(view) == "refused")
        time.sleep(2)  # in which there were three attempts
    assert stack.gateway.log_path.read_text().count("GET /api/me") == before + 1


@pytest.mark.parametrize("said", ["no JSON", '{"device": {}, "sessions": [{"id": 7}]}', "[" * 9999])
def test_garbage_becomes_a_sentence(server: JupyterServer, said: str) -> None:
    """Whatever a gateway sends, the page gets a view that it can show."""
    with FakeGateway(said) as gateway:
        keep_credentials(server, gateway.url, "any")
        with server.page() as page:
            view = page.wait(lambda view: state(view) == "refused")
    assert "no status document" in view["gateway"]["message"]
    assert view["status"] is None


def test_a_gateway_without_our_routes_is_none(server: JupyterServer) -> None:
    """Such as another Jupyter server."""
    with FakeGateway(knows_users=False) as gateway:
        keep_credentials(server, gateway.url, "any")
        with server.page() as page:
            assert "404" in page.wait(lambda view: state(view) == "refused")["gateway"]["message"]
