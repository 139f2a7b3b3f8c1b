"""What a page can do with sessions and quotas."""

from __future__ import annotations

import itertools
import urllib.request
from urllib.parse import urlsplit

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import start_session, wait_until
from tests.client.extension.server import JupyterServer, is_connected
from tests.status.documents import to_json

ROOT = "/sharedkernel/api"


def sessions(stack: LocalStack) -> set[str]:
    return {entry["id"] for entry in to_json(stack.status())["sessions"]}


def test_a_session_of_this_server_ends_with_its_kernel(stack: LocalStack, ada: JupyterServer) -> None:
    """Otherwise the kernel would only get itself another session."""
    notebook = {"path": "a.ipynb", "type": "notebook", "name": "", "kernel": {"name": "shared-gpu"}}
    with ada.page() as page:
        kernel = ada.ask("POST", "/api/sessions", notebook).body["kernel"]["id"]
        session = page.wait(lambda view: kernel in view["kernels"])["kernels"][kernel]
        assert ada.ask("DELETE", f"{ROOT}/sessions/{session}").status == 204
        page.wait(lambda view: is_connected(view) and not view["kernels"])
    # A relay leaves a gateway that is slow to end the session.
    wait_until(lambda: session not in sessions(stack), "the session's end")
    assert ada.ask("GET", "/api/kernels").body == []
    assert ada.ask("GET", "/api/sessions").body == []


def test_a_session_of_another_server_is_ended_on_the_gateway(stack: LocalStack, ada: JupyterServer) -> None:
    """It may have been left behind by a computer that is off now."""
    session = start_session(stack, "ada")
    answer = ada.ask("POST", f"{ROOT}/sessions/{session}/end-programs", {})
    assert (answer.status, answer.body["reason"]) == (409, "no_programs")
    assert session in sessions(stack)
    assert ada.ask("POST", f"{ROOT}/sessions/{session}/interrupt", {}).status == 204
    assert ada.ask("DELETE", f"{ROOT}/sessions/{session}").status == 204
    assert session not in sessions(stack)


def test_a_port_of_the_host_is_forwarded_to_this_machine(stack: LocalStack, ada: JupyterServer) -> None:
    """By the same code as in a terminal, once however often it is asked for; only with the server's own token."""
    assert ada.ask("GET", f"{ROOT}/ports").body["ports"] == []
    opened = ada.ask("POST", f"{ROOT}/ports", {"port": urlsplit(stack.gateway_url).port}).body
    assert opened["local_port"] != opened["port"]  # which the gateway has already
    assert ada.ask("POST", f"{ROOT}/ports", {"port": opened["port"]}).body == opened
    with pytest.raises(ConnectionError):  # the gateway refuses: the port is its own
        urllib.request.urlopen(f"http://127.0.0.1:{opened['local_port']}", timeout=60)
    assert ada.ask("POST", f"{ROOT}/ports", {"port": "6006"}).status == 400
    assert ada.ask("GET", f"{ROOT}/ports", token=None).status == 403
    assert ada.ask("POST", f"{ROOT}/ports", {"port": 6006}, token=None).status == 403


def test_nobody_else_s_session_can_be_touched(stack: LocalStack, grace: JupyterServer) -> None:
    """As far as grace is concerned it does not exist."""
    session = start_session(stack, "ada")
    for action in ("/offload", "/end-programs", "/interrupt", ""):
        method, body = ("POST", {}) if action else ("DELETE", None)
        answer = grace.ask(method, f"{ROOT}/sessions/{session}{action}", body)
        assert answer.status == 404, action
        assert "does not exist" in answer.body["message"]
        assert session in sessions(stack)


def test_admins_change_quotas_and_the_policy_and_others_do_not(ada: JupyterServer, grace: JupyterServer) -> None:
    """A refusal arrives as the gateway's sentence."""
    changes = {"users": {"grace": {"memory": "300MiB"}}}
    refused = grace.ask("PUT", f"{ROOT}/quotas", changes)
    assert (refused.status, refused.body) == (403, {"message": "only admins may change quotas.", "reason": "not_admin"})
    assert ada.ask("PUT", f"{ROOT}/quotas", changes).status == 200
    (name, limits), *others = grace.ask("GET", f"{ROOT}/quotas").body["users"].items()
    assert (name, limits["memory"]["value"], others) == ("grace", "300MiB", [])
    wrong = ada.ask("PUT", f"{ROOT}/quotas", {"users": {"grace": {"memory": "lots"}}})
    assert wrong.status == 400
    assert wrong.body["message"].startswith("nothing was changed: quotas['users']['grace']['memory']: 'lots' is not")
    refused = grace.ask("PUT", f"{ROOT}/policy", {"policy": "fifo"})
    assert (refused.status, refused.body["reason"]) == (403, "not_admin")
    for policy in ("fifo", "fair"):
        assert ada.ask("PUT", f"{ROOT}/policy", {"policy": policy}).status == 200
        assert grace.ask("GET", f"{ROOT}/policy").body["policy"] == policy


def test_every_route_wants_the_server_s_own_token(stack: LocalStack, ada: JupyterServer) -> None:
    """No token and the gateway's token are none."""
    routes = {
        "GET": ["events", "quotas", "policy", "kernels/some/cells"],
        "PUT": ["quotas", "policy"],
        "DELETE": ["sessions/some"],
        "POST": [f"sessions/some/{action}" for action in ("offload", "end-programs", "interrupt")],
    }
    for method, paths in routes.items():
        for path, token in itertools.product(paths, (None, stack.token("ada"))):
            answer = ada.ask(method, f"{ROOT}/{path}", {} if method != "GET" else None, token=token)
            assert answer.status == 403, (method, path)


def test_the_timeline_is_the_gateways(ada: JupyterServer) -> None:
    """Its refusals, too."""
    answer = ada.ask("GET", f"{ROOT}/timeline?seconds=60&columns=50")
    assert answer.status == 200
    (device,) = answer.body["devices"]
    assert device["end"] - device["begin"] == pytest.approx(60)
    assert ada.ask("GET", f"{ROOT}/timeline?seconds=0").body["reason"] == "config"
