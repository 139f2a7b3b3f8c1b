"""A real JupyterHub behind a real nginx: what libraries serve on the host opens at paths of a user's own server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from sharedkernel.local_stack import free_port
from tests.browser.lab import PATIENCE, LabPage
from tests.client.extension.server import JupyterServer
from tests.gateway.auth.conftest import HubStack, whole_hub_stack
from tests.gateway.conftest import wait_for
from tests.gateway.page.test_behind_proxy import real_proxy

for package in ("jupyterhub", "jupyter_server_proxy", "tensorboard", "gradio"):
    pytest.importorskip(package)
__all__ = ["whole_hub_stack"]  # pytest finds fixtures by their names here

USER = "emil"
#: a training that writes down its loss, and who shows it
TENSORBOARD = """\
import subprocess, sys, tempfile, torch
from torch.utils.tensorboard import SummaryWriter
folder = tempfile.mkdtemp()
command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", "0", "--reload_interval", "1"]
board = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
print("served at", next(line for line in board.stderr if "http://" in line))
def train(steps):
    with SummaryWriter(folder) as writer:
        for step in range(steps):
            writer.add_scalar("loss of this training", torch.ones(8).sum() / (step + 1), step)
train(20)\
"""
GRADIO = """\
import gradio
def count(number):
    for step in range(1, int(number) + 1):
        yield f"step {step}"
demo = gradio.Interface(count, "number", "text")
_, address, _ = demo.launch(prevent_thread_lock=True, quiet=True)
print("served at", address)\
"""
#: passed on as the admin guide has it, with the place of each of the hub's parts
_PROXY = """
server {{
    listen {port};
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection "upgrade";
    proxy_buffering off;
    location /hub/ {{ proxy_pass http://127.0.0.1:{hub}; }}
    location /user/ {{ proxy_pass {server}; }}
}}
"""


@pytest.fixture
def lab(browser: Browser, whole_hub_stack: HubStack, tmp_path: Path) -> Iterator[LabPage]:
    """Open a notebook of a user who has signed in at the hub, on a machine that is not the browser's."""
    hub, port = whole_hub_stack.hub, free_port()
    config = hub.image / "etc" / "jupyter"
    (config / "labconfig").mkdir(parents=True)
    (config / "jupyter_server_config.json").write_text(json.dumps({"LabApp": {"expose_app_in_browser": True}}))
    disabled = {"@jupyterlab/apputils-extension:announcements": True}
    (config / "labconfig" / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    address = urlsplit(hub.start_server(USER, whole_hub_stack.gateway_url))
    block = _PROXY.format(port=port, hub=hub.port, server=f"{address.scheme}://{address.netloc}")
    try:
        with real_proxy("nginx", block, port, tmp_path):
            server = JupyterServer(tmp_path / "unused", {})
            server.url = f"http://127.0.0.2:{port}{address.path}"
            page = LabPage(browser, server, storage_state=_signed_in(browser, server.url))
            page.new_notebook()
            yield page
            page.close()
    finally:
        hub.stop_server(USER)


def _signed_in(browser: Browser, url: str) -> StorageState:
    """Sign in with the hub's form; return its cookies and those of the user's server."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{url}/lab")
    page.get_by_label("Username").fill(USER)
    page.get_by_label("Password").fill("any")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/lab**", wait_until="commit")
    state = context.storage_state()
    context.close()
    return state


def open_printed(lab: LabPage, code: str) -> Page:
    """Run a cell that prints an address; open its port in the panel, which shows ports, and give the page."""
    cell = lab.run(code)
    expect(lab.output(cell)).to_contain_text("http://")
    address = "http://" + lab.output(cell).inner_text().split("http://")[1].split()[0]
    with lab.page.context.expect_page() as opened:
        lab.section("Ports").get_by_role("button", name=f"Open port {urlsplit(address).port}").click()
    return opened.value


def test_libraries_open_behind_a_hub(lab: LabPage) -> None:
    """TensorBoard as it stands, with what a training has written since; gradio once it is told its path."""
    lab.show_panel()
    lab.section("Ports").get_by_text("Ports").click()

    board = open_printed(lab, TENSORBOARD)
    assert board.url.startswith(f"{lab.server.url}/proxy/")
    expect(board.get_by_text("loss of this training").first).to_be_visible()
    lab.run("train(40)")
    again, last = board.locator(".reload-button"), board.get_by_text("39", exact=True)
    wait_for(lambda: again.click() or last.count())
    lab.run("board.kill()")

    demo = open_printed(lab, GRADIO)
    expect(lab.output(lab.run(f"demo.app.root_path = {urlsplit(demo.url).path!r}; print('told')"))).to_contain_text(
        "told"
    )
    demo.reload()
    demo.get_by_label("number").fill("5")
    demo.get_by_role("button", name="Submit").click()
    expect(demo.get_by_label("output")).to_have_value("step 5")
    lab.run("demo.close()")
