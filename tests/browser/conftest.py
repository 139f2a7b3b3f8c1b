"""A gateway with an executor, a JupyterLab for each of two users, and a browser; skipped where one of them is not.

The browser is Chromium, found by its usual names or where CHROMIUM says; the extension has to be built
(``python labextension/build_backend.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jupyter_core.paths import jupyter_path

from benchmarks.ui import CHROMIUM_ARGUMENTS, find_chromium
from sharedkernel.client.gateway.credentials import TOKEN_VARIABLE, URL_VARIABLE
from sharedkernel.local_stack import LocalStack
from tests.browser.laptop import Laptop
from tests.cli.support import end_sessions
from tests.client.extension.server import JupyterServer
from tests.executor.isolation import ADA
from tests.files import FileStack, apart_stack
from tests.warm_stack import WarmStack

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed", exc_type=ImportError)

from tests.browser.lab import LabPage, start_lab, start_lab_with  # noqa: E402  (needs playwright)

#: opens a user's JupyterLab in a window of its own
OpenLab = Callable[..., LabPage]


@pytest.fixture(scope="package")
def browser() -> Iterator[object]:
    """Return a running browser, or skip."""
    if sys.platform != "linux":
        pytest.skip("the executor runs on Linux only")
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium was found; install it, or name it in CHROMIUM")
    if not any(os.path.exists(f"{path}/sharedkernel/package.json") for path in jupyter_path("labextensions")):
        pytest.skip("the JupyterLab extension is not built; run `python labextension/build_backend.py`")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def machine(browser: object) -> Iterator[Laptop]:
    """Return a user's own machine, or skip."""
    try:
        machine = Laptop()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"only root can give a user a machine, and not everywhere: {error}")
    yield machine
    machine.close()


@pytest.fixture(scope="package")
def far_browser(browser: Any, machine: Laptop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Return a browser on that machine."""
    program = machine.wrapped(str(find_chromium()), tmp_path_factory.mktemp("browser"))
    browser = browser.browser_type.launch(executable_path=program, args=CHROMIUM_ARGUMENTS)
    yield browser
    browser.close()


@pytest.fixture(scope="package")
def host(machine: Laptop) -> Iterator[FileStack]:
    """Users with accounts of their own, and no terminals, as at first, at the host's end of that machine's cable."""
    with apart_stack(address=machine.host_address, config="") as stack:
        yield stack


@pytest.fixture(scope="package")
def laptop(
    far_browser: object, machine: Laptop, host: FileStack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JupyterServer]:
    """Return ada's JupyterLab on that machine, which she has connected by the form."""
    with machine:
        server = start_lab_with(tmp_path_factory.mktemp("laptop") / "lab", {URL_VARIABLE: "", TOKEN_VARIABLE: ""})
        page = LabPage(far_browser, server)
        page.show_panel()
        page.connect(host.gateway_url, host.token(ADA))
        page.panel.get_by_label("names the same").check()
        page.panel.get_by_role("button", name="Connect").click()
        playwright.expect(page.section("Notebooks")).to_be_visible()
        page.close()
    yield server
    server.stop()


@pytest.fixture
def lab(far_browser: object, machine: Laptop, laptop: JupyterServer) -> Iterator[LabPage]:
    """Return a window of hers; this thread is on her machine."""
    with machine:
        page = LabPage(far_browser, laptop)
        yield page
        page.close()
        for session in laptop.ask("GET", "/api/sessions").body:
            laptop.ask("DELETE", f"/api/sessions/{session['id']}")
    assert page.errors == []


@pytest.fixture(scope="package")
def stack(browser: object) -> Iterator[LocalStack]:
    """Two users share a small device: ada is an admin, grace is not. Cells run one after the other, in their order."""
    with WarmStack(
        users=["ada", "grace"],
        capacity="2GiB",
        # hers moves away soon only if somebody asks; a cell that nobody could make room for would fail at once
        quotas={"users": {"grace": {"memory": "1GiB", "offload_after": "1h"}}},
        executor_arguments=["--policy", "fifo"],
    ) as stack:
        yield stack


@pytest.fixture(scope="package")
def servers(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, JupyterServer]]:
    servers: dict[str, JupyterServer] = {}
    try:
        for user in stack.users:
            servers[user] = start_lab(tmp_path_factory.mktemp(user) / "lab", user, stack)
        yield servers
    finally:
        for server in servers.values():
            server.stop()


@pytest.fixture
def open_lab(browser: object, servers: dict[str, JupyterServer], stack: LocalStack) -> Iterator[OpenLab]:
    """Return what opens windows; they close after the test, with all kernels, and none may have complained."""
    pages: list[LabPage] = []

    def open_one(user: str, **options: object) -> LabPage:
        pages.append(LabPage(browser, servers[user], **options))  # type: ignore[arg-type]
        return pages[-1]

    yield open_one
    errors = [error for page in pages for error in page.errors]
    for page in pages:
        page.close()
    for server in servers.values():
        for session in server.ask("GET", "/api/sessions").body:
            server.ask("DELETE", f"/api/sessions/{session['id']}")
    end_sessions(stack)
    assert errors == []
