"""What a notebook serves on the host opens from the panel, in a page of its own."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from urllib.parse import urlsplit

from playwright.sync_api import expect

from tests.browser.lab import LabPage
from tests.executor.isolation import needs_root

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


@needs_root
def test_a_port_opens_from_the_panel(lab: LabPage) -> None:
    """At its own number, or another where a program here has that, whichever of the two addresses it listens on.

    It is served beside the page, not by it: the page's cookies stay with the page.
    """
    lab.show_panel()
    lab.section("Ports").get_by_text("Ports").click()
    expect(lab.section("Ports")).to_contain_text("None of your programs listens")
    lab.new_notebook()
    for taken in ("", "::1"):
        cell = lab.run(_SERVE)
        expect(lab.output(cell)).to_contain_text("port ")
        port = int(lab.output(cell).inner_text().split()[-1])
        lab.show_panel()
        button = lab.section("Ports").get_by_role("button", name=f"Open port {port}")
        with socket.create_server((taken, port), family=socket.AF_INET6) if taken else nullcontext():
            with lab.page.context.expect_page() as opened:
                button.click()
            expect(opened.value.locator("body")).to_have_text("scalars, cookies: None")
            assert (urlsplit(opened.value.url).port == port) is (not taken)
        assert lab.page.context.cookies(lab.page.url)
        lab.run("board.kill()")
        expect(button).to_have_count(0)
