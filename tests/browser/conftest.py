"""A gateway with an executor, a JupyterLab for each of two users, and a browser; skipped where one of them is not.

The browser is Chromium, found by its usual names or where CHROMIUM says; the extension has to be built
(``python labextension/build_backend.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
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

# these need playwright
from tests.browser.figures import COMMAND, NAMES, history_of, limits_of, of_users, timeline_of  # noqa: E402
from tests.browser.gateway_page import OpenPage  # noqa: E402
from tests.browser.lab import PATIENCE, LabPage, start_lab, start_lab_with  # noqa: E402
from tests.browser.page_server import STATIC, PageServer  # noqa: E402

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
    """Three users share a small device: ada is an admin, grace is not, and mary's sessions stay for a while.

    Cells run one after the other, in their order.
    """
    # grace's memory moves away soon only if somebody asks; a cell that nobody could make room for would fail at once
    quotas = {"grace": {"memory": "1GiB", "offload_after": "1h"}, "mary": {"linger": "10m"}}
    with WarmStack(
        users=["ada", *quotas], capacity="2GiB", quotas={"users": quotas}, executor_arguments=["--policy", "fifo"]
    ) as stack:
        yield stack


@pytest.fixture(scope="package")
def servers(stack: LocalStack) -> Iterator[dict[str, JupyterServer]]:
    """Return the users' JupyterLabs, each of which is started when it is first needed."""
    servers: dict[str, JupyterServer] = {}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def open_lab(
    browser: object, servers: dict[str, JupyterServer], stack: LocalStack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenLab]:
    """Return what opens windows; they close after the test, with all notebooks, and none may have complained."""
    pages: list[LabPage] = []

    def open_one(user: str, **options: object) -> LabPage:
        if user not in servers:
            servers[user] = start_lab(tmp_path_factory.mktemp(user) / "lab", user, stack)
        pages.append(LabPage(browser, servers[user], **options))  # type: ignore[arg-type]
        return pages[-1]

    yield open_one
    errors = [error for page in pages for error in page.errors]
    for page in pages:
        page.close()
    for server in servers.values():
        for session in server.ask("GET", "/api/sessions").body:
            server.ask("DELETE", f"/api/sessions/{session['id']}")
        for file in server.ask("GET", "/api/contents").body["content"]:
            server.ask("DELETE", f"/api/contents/{file['path']}")
    end_sessions(stack)
    assert errors == []


@pytest.fixture
def open_window(browser: Any) -> Iterator[OpenPage]:
    """Return what opens an address in a window of its own.

    Whatever a page reports as an error, or its content security policy forbids, fails the test.
    """
    errors: list[str] = []
    contexts = []

    def open_one(url: str, *, width: int = 1280, clock: bool = False, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
        if clock:
            page.clock.install()
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def server(browser: object) -> Iterator[PageServer]:
    """Serve the gateway's page with figures of three users, of whom ada looks at it."""
    if not (STATIC / "page.js").exists():
        pytest.skip("the gateway's page is not built; run `python labextension/build_backend.py`")
    with PageServer() as server:
        server.me = {"user": "ada", "admin": True, "auth": "token", "version": "1", "install_command": COMMAND}
        server.quotas = {"users": {name: limits_of("8GiB") for name in NAMES[:3]}}
        server.history = history_of(of_users(3))
        server.say(of_users(3))
        server.timeline = timeline_of(of_users(3))
        yield server


@pytest.fixture
def open_page(open_window: OpenPage, server: PageServer) -> OpenPage:
    """Return what opens that page."""
    return partial(open_window, server.url)
