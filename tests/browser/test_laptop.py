"""A machine of the user's own beside the host: the commands there, and a network that is away for a while."""

from __future__ import annotations

import subprocess

from playwright.sync_api import expect

from tests.browser.lab import LabPage
from tests.executor.isolation import needs_root
from tests.files import FileStack
from tests.gateway.conftest import wait_for

pytestmark = needs_root

_COUNT = """\
import time
for number in range(100):
    print("line", number, file=open("printed", "a"), flush=True)
    print("line", number)
    time.sleep(0.05)\
"""


def test_nothing_is_lost_while_the_cable_is_out(lab: LabPage, host: FileStack) -> None:
    """Nobody is told that it is: what is sent meanwhile vanishes. The cell goes on, and all that it prints arrives."""
    lab.new_notebook()
    output = lab.output(lab.run(_COUNT))
    expect(output).to_contain_text("line 3")
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
    try:
        wait_for(lambda: "line 99" in (host.home() / "printed").read_text())
        assert "line 99" not in output.inner_text()
    finally:
        subprocess.run(["ip", "link", "set", "eth0", "up"], check=True)
    expect(output).to_contain_text("line 99")
    assert (host.home() / "printed").read_text().strip() in output.inner_text()
