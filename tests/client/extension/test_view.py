"""What a page is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from websocket import WebSocketBadStatusException

from sharedkernel.local_stack import LocalStack
from tests.cli.support import start_session
from tests.client.extension.conftest import StartServer
from tests.client.extension.server import JupyterServer, Page, is_connected
from tests.status.documents import to_json


def test_a_page_sees_the_session_behind_its_kernel(stack: LocalStack, ada: JupyterServer) -> None:
    """A relay's kernel id is not the session's, and the view says which is whose; no page gets the gateway's token."""
    with ada.page() as page:
        kernel = ada.ask("POST", "/api/kernels", {"name": "shared-gpu"}).body["id"]
        view = page.wait(lambda view: kernel in view["kernels"])
        session = view["kernels"][kernel]
        assert session != kernel
        (entry,) = (entry for entry in view["status"]["sessions"] if entry["id"] == session)
        assert entry["user"] == "ada"
        assert session in {entry["id"] for entry in to_json(stack.status())["sessions"]}
        assert not any(stack.token("ada") in text for text in page.said)
    assert stack.token("ada") not in str(ada.ask("GET", "/sharedkernel/api/quotas").body)


def test_a_page_knows_who_its_user_is(ada: JupyterServer, grace: JupyterServer) -> None:
    """Their name, and whether they are an admin, as the gateway says."""
    for server, user in ((ada, {"name": "ada", "admin": True}), (grace, {"name": "grace", "admin": False})):
        with server.page() as page:
            assert page.wait(is_connected)["user"] == user


def test_nobody_else_s_notebook_is_told(ada: JupyterServer, grace: JupyterServer) -> None:
    """Others' sessions come without what tells who works on what."""
    with grace.page() as page:
        kernel = ada.ask("POST", "/api/kernels", {"name": "shared-gpu", "path": "secret.ipynb"}).body["id"]
        # One of an earlier test, whose relay did not wait for its end, may be there for a moment.
        view = page.wait(lambda view: is_connected(view) and len(view["status"]["sessions"]) == 1)
        (session,) = view["status"]["sessions"]
        assert session["user"] == "ada"
        assert (session["notebook"], session["kernel_id"], session["client_key"]) == (None, None, None)
        assert view["kernels"] == {}
    ada.ask("DELETE", f"/api/kernels/{kernel}")


def test_a_sites_rules_on_who_may_what_hold_for_the_view(
    stack: LocalStack, start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "site_rules.py").write_text(
        "from jupyter_server.auth import Authorizer\n\n\n"
        "class Rules(Authorizer):\n"
        "    def is_authorized(self, handler, user, action, resource):\n"
        "        return resource != 'sharedkernel'\n"
    )
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    environment = stack.client_environment("ada") | {"PYTHONPATH": places}
    server = start_server("ada", "--ServerApp.authorizer_class=site_rules.Rules", environment=environment)
    assert server.ask("GET", "/api/status").status == 200
    assert server.ask("GET", "/sharedkernel/api/quotas").status == 403
    with pytest.raises(WebSocketBadStatusException, match="403"):
        Page(server)


@pytest.mark.heavy
def test_it_works_with_the_gateway_option(stack: LocalStack, start_server: StartServer) -> None:
    """There a kernel has its session's id, which nobody can take by naming their own so."""
    token = f"--GatewayClient.auth_token={stack.token('ada')}"
    server = start_server("ada", f"--gateway-url={stack.gateway_url}", token)
    with server.page() as page:
        kernel = server.ask("POST", "/api/kernels", {"name": "shared-gpu"}).body["id"]
        assert page.wait(lambda view: view["kernels"])["kernels"] == {kernel: kernel}
        # anybody can choose the key of their session
        taken = start_session(stack, "grace", env={"KERNEL_CLIENT_KEY": kernel})
        view = page.wait(lambda view: taken in {each["id"] for each in view["status"]["sessions"]})
        assert view["kernels"] == {kernel: kernel}
    assert server.ask("DELETE", f"/sharedkernel/api/sessions/{kernel}").status == 204
    assert server.ask("GET", "/api/kernels").body == []
