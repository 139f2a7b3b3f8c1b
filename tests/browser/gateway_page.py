"""The gateway's own page in a browser: how a test finds its parts, and how it asks a gateway beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from playwright.sync_api import Page

from tests.browser.lab import PATIENCE

T = TypeVar("T")
#: opens a page in a window of its own, with options of its context
OpenPage = Callable[..., Page]


def apart(work: Coroutine[Any, Any, T]) -> T:
    """Return what *work* returns; this thread's event loop is playwright's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result(PATIENCE)


def sign_in(page: Page, token: str) -> None:
    """Sign in with *token*."""
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def section(page: Page, title: str) -> Any:
    return page.get_by_role("region", name=title)


def show(page: Page, tab: str, title: str | None = None) -> Any:
    """Open a part of the page; return its section, whose title is that of the tab unless it is given."""
    page.get_by_role("navigation").get_by_role("link", name=tab, exact=True).click()
    return section(page, title or tab)


def row(page: Page, notebook: str) -> Any:
    """Return a notebook's row of the table."""
    return section(page, "Notebooks").get_by_role("row").filter(has_text=notebook)
