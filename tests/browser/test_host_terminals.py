"""Terminals on the host in JupyterLab on another machine, whose Jupyter server is below a path, as behind a hub."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.lab import LabPage, keep_picture, make_lab
from tests.browser.laptop import HOST, Laptop
from tests.client.extension.server import JupyterServer
from tests.executor.isolation import ADA
from tests.files import FileStack
from tests.gateway.conftest import wait_for

_BASE = "/user/ada"
_MOST = 3
_CONFIG = f"""
c.SharedKernelGateway.terminals = True
c.SharedKernelGateway.max_websockets = {_MOST}
"""
#: title of a terminal's tab, once there is a prompt
_CONNECTED = re.compile(r"Terminal \w|:")
LABEL = f"Terminal on {HOST}"


@pytest.fixture(scope="module")
def host(machine: Laptop) -> Iterator[FileStack]:
    """Users with homes of their own, and terminals; few connections."""
    with FileStack(address=machine.host_address, config=_CONFIG) as stack:
        yield stack


@pytest.fixture(scope="module")
def laptop(machine: Laptop, host: FileStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    directory = tmp_path_factory.mktemp("laptop") / "lab"
    server = make_lab(directory, host.client_environment(ADA), f"--ServerApp.base_url={_BASE}/")
    server.url += _BASE
    with machine:
        server.start()
    yield server
    server.stop()


def test_a_terminal_on_the_host_is_a_tab(lab: LabPage, host: FileStack) -> None:
    """Opened in the launcher or by the palette, it is there after the page is loaded anew.

    Closing the tab ends it there, and its end takes the tab along. Where a user has as many connections open as they
    may, another one's refusal is a sentence.
    """
    cards = lab.page.locator('.jp-LauncherCard[data-category="Shared GPU"]')
    expect(cards).to_have_text(["New notebook: free", LABEL])
    cards.last.click()
    type_line(lab, 'echo "$((6 * 7)) $HOME" > told; clear; uname -n')
    told = host.home() / "told"
    wait_for(lambda: told.exists() and told.read_text() == f"42 {host.home()}\n")
    keep_picture(lab.page, "host-terminal")
    there = terminals(lab)
    assert len(there) == 1
    assert not there[0].isdecimal(), "the server counts anew once it is, and an old tab would have another's terminal"
    lab.reload()
    type_line(lab, "echo again > told")
    wait_for(lambda: told.read_text() == "again\n")
    assert terminals(lab) == there
    lab.page.locator(".lm-TabBar-tab.jp-mod-current .lm-TabBar-tabCloseIcon").click()
    expect(lab.page.locator(".jp-Terminal")).to_have_count(0)
    wait_for(lambda: terminals(lab) == [])

    lab.command(LABEL)
    type_line(lab, "exit")
    expect(lab.page.locator(".jp-Terminal")).to_have_count(0)
    assert terminals(lab) == []

    for number in range(_MOST - 1):  # one is the page's own
        lab.command(LABEL)
        expect(lab.page.locator(".lm-TabBar-tab", has_text=_CONNECTED)).to_have_count(number + 1)
    lab.command(LABEL)
    dialog = lab.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text(LABEL)
    expect(dialog).to_contain_text(f"{_MOST} connections to this gateway open, which is the most")


def type_line(lab: LabPage, line: str) -> None:
    """Type a line into the terminal in front."""
    terminal = lab.page.locator(".jp-Terminal .xterm-helper-textarea")
    expect(terminal).to_be_visible()
    terminal.focus()
    lab.page.keyboard.type(line + "\n")


def terminals(lab: LabPage) -> list[str]:
    """Return the names of those on the host, or why they are not told."""
    answer = lab.server.ask("GET", "/sharedkernel/api/host/api/terminals")
    return [entry["name"] for entry in answer.body] if answer.status == 200 else [f"{answer.status}: {answer.body}"]
