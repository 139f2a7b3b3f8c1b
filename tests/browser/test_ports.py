"""What a notebook serves on the host opens from the panel, in a page of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from sharedkernel.local_stack import LocalStack
from tests.browser.conftest import OpenLab
from tests.browser.lab import LabPage, make_lab
from tests.cli.support import end_sessions

#: serves one sentence on a port that nothing else has, and what a browser has sent along with the request
_SERVE = """\
import subprocess, sys
code = '''
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"scalars, cookies: {self.headers.get('Cookie')}".encode())
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
'''
board = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
print("port", board.stdout.readline())\
"""


def test_where_jupyterlab_is_elsewhere_a_port_opens_at_a_path_of_its_server(
    browser: Browser, stack: LocalStack, tmp_path: Path
) -> None:
    """As behind a hub, by jupyter-server-proxy: no browser reaches another machine's loopback."""
    pytest.importorskip("jupyter_server_proxy")
    base = "/user/ada"
    options = [f"--ServerApp.base_url={base}/", "--ServerApp.ip=127.0.0.2", "--ServerApp.allow_remote_access=True"]
    server = make_lab(tmp_path / "lab", stack.client_environment("ada"), *options)
    server.url = f"http://127.0.0.2:{server.port}{base}"
    server.start()
    try:
        ada = LabPage(browser, server)
        ada.new_notebook()
        expect(ada.run(_SERVE)).to_contain_text("port ")
        ada.show_panel()
        ada.section("Ports").get_by_text("Ports").click()
        with ada.page.context.expect_page() as opened:
            ada.section("Ports").get_by_role("button", name="Open port").click()
        expect(opened.value.locator("body")).to_contain_text("scalars, cookies:")
        assert opened.value.url.startswith(f"{server.url}/proxy/")
        ada.run("board.kill()")
        ada.close()
    finally:
        server.stop()
        end_sessions(stack)


def test_a_port_opens_from_the_panel(open_lab: OpenLab, stack: LocalStack) -> None:
    """It is served beside the page, not by it: the page's cookies stay with the page."""
    ada = open_lab("ada")
    ada.show_panel()
    ada.section("Ports").get_by_text("Ports").click()
    expect(ada.section("Ports")).to_contain_text("None of your programs listens")
    ada.new_notebook()
    cell = ada.run(_SERVE)
    expect(cell).to_contain_text("port ")
    ada.show_panel()
    button = ada.section("Ports").get_by_role("button", name="Open port")
    expect(button).to_be_visible()
    with ada.page.context.expect_page() as opened:
        button.click()
    expect(opened.value.locator("body")).to_have_text("scalars, cookies: None")
    assert ada.page.context.cookies(ada.page.url)
    ada.run("board.kill()")
    expect(button).to_have_count(0)
