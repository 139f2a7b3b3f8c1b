"""A machine of the user's own beside the host: the commands there, and a network that is away for a while."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.lab import LabPage
from tests.cli.support import COMMAND
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


def test_the_command_has_what_the_form_has_kept(lab: LabPage, host: FileStack, tmp_path: Path) -> None:
    """Address, token and certificate."""
    (tmp_path / "data.bin").write_bytes(content := os.urandom(3 << 20))
    for words in ("put data.bin", "get data.bin back.bin"):
        command = [*COMMAND, "files", *words.split()]
        subprocess.run(command, env=os.environ | lab.server.service.environment, cwd=tmp_path, check=True)
    assert (host.home() / "data.bin").read_bytes() == (tmp_path / "back.bin").read_bytes() == content


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
