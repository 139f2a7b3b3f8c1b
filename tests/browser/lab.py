"""JupyterLab as one user has it in a browser; what a person does and sees there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Locator, Page, Request, expect

from sharedkernel.local_stack import LocalStack
from tests.client.extension.server import TOKEN, JupyterServer

#: milliseconds that anything in a page may take, on a busy machine
PATIENCE = 60_000
#: milliseconds after which something that JupyterLab may have undone is tried again
_RETRY = 5_000
#: the same of what is there at once or not at all, and does no harm if it is done twice
_RETRY_SOON = 1_500

#: of JupyterLab's own, these ask the outside world for news
_UNWANTED = ["@jupyterlab/apputils-extension:announcements"]
#: a question after the first save would come at no fixed moment
_SETTINGS = {"@jupyterlab/docmanager-extension:plugin": {"renameUntitledFileOnSave": False}}

expect.set_options(timeout=PATIENCE)


def start_lab(directory: Path, user: str, stack: LocalStack) -> JupyterServer:
    """Start *user*'s JupyterLab with the kernelspec of *stack*."""
    return start_lab_with(directory, stack.client_environment(user))


def start_lab_with(directory: Path, environment: Mapping[str, str], *, program: str = "jupyterlab") -> JupyterServer:
    """Start a JupyterLab that finds its gateway in *environment*."""
    server = make_lab(directory, environment, program=program)
    server.start()
    return server


def make_lab(
    directory: Path, environment: Mapping[str, str], *arguments: str, program: str = "jupyterlab"
) -> JupyterServer:
    """Return a JupyterLab that finds its gateway in *environment*, once it is started."""
    server = JupyterServer(directory, environment, "--LabApp.expose_app_in_browser=True", *arguments, program=program)
    settings = server.config / "labconfig"
    settings.mkdir(parents=True)
    disabled = dict.fromkeys(_UNWANTED, True)
    (settings / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    (settings / "default_setting_overrides.json").write_text(json.dumps(_SETTINGS))
    return server


class LabPage:
    """A browser window with JupyterLab."""

    def __init__(
        self,
        browser: Browser,
        server: JupyterServer,
        *,
        size: tuple[int, int] = (1280, 800),
        script: str = "",
        **options: Any,
    ) -> None:
        self.server = server
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        self.context.set_default_timeout(PATIENCE)
        if script:
            self.context.add_init_script(script)
        self.page: Page = self.context.new_page()
        #: what the page complained of
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: dialog.accept())  # it asks whether unsaved changes may go
        self.page.goto(f"{server.url}/lab?token={TOKEN}&reset")
        self.wait_until_open()

    def wait_until_open(self) -> None:
        """Return once JupyterLab is there, and its layout is as it was when it was left."""
        self.page.wait_for_function("window.jupyterapp?.restored.then(() => true)")
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)
        expect(self.page.locator("#jp-main-dock-panel")).to_be_visible()

    def close(self) -> None:
        """Close the window."""
        self.context.close()

    # --- what a person does -------------------------------------------------------------------------------------------

    def connect(self, url: str, token: str) -> None:
        """Fill the panel's form in, and send it."""
        self.panel.get_by_label("Address").fill(url)
        self.panel.get_by_label("Your token").fill(token)
        self.panel.get_by_role("button", name="Connect").click()

    def new_notebook(self) -> None:
        """Pick the shared device in the launcher, and wait for its kernel."""
        card = self.page.locator('.jp-LauncherCard[data-category="Notebook"][title="Shared GPU (PyTorch)"]')
        card.first.click()
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        """Return once the notebook's kernel is there and does nothing."""
        expect(self.page.locator("#jp-bottom-panel")).to_contain_text("Shared GPU (PyTorch) | Idle")

    def run(self, code: str) -> Locator:
        """Type *code* into the last cell, run it, and return the cell; it may take as long as it likes."""
        cells = self.notebook.locator(".jp-CodeCell")
        number = cells.count()
        cells.last.locator(".cm-content").click()
        self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Shift+Enter")
        expect(cells).to_have_count(number + 1)
        return cells.nth(number - 1)

    @staticmethod
    def output(cell: Locator) -> Locator:
        """Return what a cell has printed; the cell itself has its source, too."""
        return cell.locator(".jp-OutputArea")

    def save(self) -> None:
        """Save the notebook under the name that it has."""
        with self.page.expect_response(lambda response: _is_save(response.request)):
            self.page.keyboard.press("Control+S")

    def reload(self) -> None:
        """Load the page anew."""
        self.page.goto(self.page.url.split("?")[0])
        self.wait_until_open()

    def command(self, label: str) -> None:
        """Run a command by its label in the palette.

        JupyterLab closes the palette whenever another command runs or something else takes the focus, as may happen
        while a page or a notebook is being opened; then this begins anew.
        """
        self._insist(lambda: self._choose_command(label))

    @staticmethod
    def _insist(attempt: Callable[[], None]) -> None:
        """Do something that JupyterLab may undo until it is done."""
        deadline = time.monotonic() + PATIENCE / 1000
        while True:
            try:
                attempt()
                return
            except (Error, AssertionError):
                if time.monotonic() > deadline:
                    raise

    def _choose_command(self, label: str) -> None:
        palette = self.page.locator(".jp-ModalCommandPalette")
        self.page.keyboard.press("Control+Shift+C")
        palette.locator("input").fill(label, timeout=_RETRY_SOON)
        expect(palette.locator(".lm-CommandPalette-item.lm-mod-active")).to_contain_text(label, timeout=_RETRY)
        palette.locator("input:focus").press("Enter", timeout=_RETRY)
        expect(palette).to_be_hidden()

    def use_theme(self, name: str) -> None:
        """Change JupyterLab's theme, and wait until it is there."""
        self.command(f"Use Theme: {name}")
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-name", name)
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)

    def show_panel(self) -> None:
        """Open the panel.

        A page that is still being opened puts its sidebars as they were at last, after the command.
        """

        def show() -> None:
            self._choose_command("Show Shared GPU")
            expect(self.panel).to_be_visible(timeout=_RETRY_SOON)

        self._insist(show)

    # --- what a person sees -------------------------------------------------------------------------------------------

    @property
    def notebook(self) -> Locator:
        """The notebook in front."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    @property
    def status_item(self) -> Locator:
        """The status bar's item."""
        return self.page.locator(".sk-StatusItem")

    @property
    def panel(self) -> Locator:
        """The side panel."""
        return self.page.locator("#sharedkernel-panel")

    def section(self, title: str) -> Locator:
        """Return a part of the panel, by its heading."""
        return self.panel.get_by_role("region", name=title)

    def dialog_button(self, label: str) -> Locator:
        """Return a button of the dialog that is open."""
        return self.page.locator(".jp-Dialog").get_by_role("button", name=label)


def _is_save(request: Request) -> bool:
    return request.method == "PUT" and "/api/contents/" in request.url


def check_accessible(page: Page, context: str | None = None) -> None:
    """Check that axe finds nothing in a page, or in what the selector *context* names."""
    results = Axe().run(page, context=context)
    assert results.violations_count == 0, results.generate_report()


def keep_picture(shown: Page | Locator, name: str, **options: Any) -> None:
    """Keep a picture for the documentation, in the directory that SHAREDKERNEL_PICTURES names.

    *options* are those of playwright's ``screenshot``.
    """
    if directory := os.environ.get("SHAREDKERNEL_PICTURES"):
        from PIL import Image

        path = Path(directory) / f"{name}.png"
        shown.screenshot(path=str(path), **options)
        # a third of the bytes; rare colours, such as of a small square, stay as they are
        picture = Image.open(path).convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        picture.save(path, optimize=True)
