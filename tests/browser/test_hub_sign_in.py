"""From the gateway's page to a real JupyterHub and back."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.lab import PATIENCE, keep_picture
from tests.gateway.auth.conftest import HubStack, whole_hub_stack

pytest.importorskip("jupyterhub")
__all__ = ["whole_hub_stack"]  # pytest finds fixtures by their names here


def test_one_signs_in_with_the_hub(browser: Browser, whole_hub_stack: HubStack) -> None:
    """With the hub's own form, once: signed out of the page, one is still known there."""
    context = browser.new_context(viewport={"width": 900, "height": 700})
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(whole_hub_stack.gateway_url)
        results = Axe().run(page)
        assert results.violations_count == 0, results.generate_report()
        keep_picture(page, "page-sign-in-hub")
        page.get_by_role("link", name="Sign in with JupyterHub").click()
        page.get_by_label("Username").fill("lise")
        page.get_by_label("Password").fill("any")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="Connect")).to_be_visible()
        expect(page.get_by_role("banner")).to_contain_text("lise")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("link", name="Sign in with JupyterHub").click()
        expect(page.get_by_role("link", name="Connect")).to_be_visible()
        assert not errors
    finally:
        context.close()
