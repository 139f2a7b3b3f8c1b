"""The gateway's own page in a browser, in front of a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from playwright.sync_api import Browser, Page

from tests.browser.lab import PATIENCE

T = TypeVar("T")


@contextlib.contextmanager
def gateway_page(browser: Browser, url: str) -> Iterator[Page]:
    """Yield a gateway's address as a browser shows it; whatever the page reports as an error fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    yield page
    context.close()
    assert not errors


def apart(work: Coroutine[Any, Any, T]) -> T:
    """Return what *work* returns; this thread's event loop is playwright's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result(PATIENCE)


def sign_in(page: Page, token: str) -> None:
    """Sign in with *token*."""
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Sign in").click()
