"""The gateway's own page in front of a real gateway, with people at work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from sharedkernel.local_stack import LocalStack
from tests.browser.gateway_page import apart, gateway_page, sign_in
from tests.browser.lab import keep_picture
from tests.gateway.client import Client

_KEEP = "import torch\nkept = torch.ones(64 << 18)  # 64 MiB"


@pytest.fixture
def page(browser: Browser, stack: LocalStack) -> Iterator[Page]:
    """Yield the gateway's page."""
    with gateway_page(browser, stack.gateway_url) as page:
        yield page


def test_from_signing_in_to_signing_out(page: Page, stack: LocalStack) -> None:
    """A wrong token is told; a right one shows what runs, live, and what can be done about it."""
    sign_in(page, "sk-00000000-wrong")
    expect(page.get_by_role("alert")).to_contain_text("does not know that token")
    keep_picture(page, "gateway-page-sign-in")
    user, other = stack.users[:2]
    sign_in(page, stack.token(user))
    expect(page.get_by_role("link", name="Connect")).to_be_visible()

    async def work() -> tuple[str, str]:
        own, others = (Client(stack.gateway_url, stack.token(name)) for name in (user, other))
        kernels = await own.start(KERNEL_NOTEBOOK="train.ipynb"), await others.start(KERNEL_NOTEBOOK="secret.ipynb")
        for client, kernel in zip((own, others), kernels, strict=True):
            async with client.attach(kernel) as channels:
                assert (await channels.run(_KEEP))["status"] == "ok"
        return kernels

    async def end(*kernels: str) -> None:
        own, others = (Client(stack.gateway_url, stack.token(name)) for name in (user, other))
        await own.request("DELETE", f"/api/kernels/{kernels[0]}?linger=0")
        await others.request("DELETE", f"/api/kernels/{kernels[1]}?linger=0")

    kernels = apart(work())
    try:
        page.get_by_role("link", name="Now").click()
        mine = page.get_by_role("row").filter(has_text="train.ipynb")
        expect(mine).to_be_visible()
        keep_picture(page, "gateway-page-live", full_page=True)
        mine.get_by_role("button", name="Offload").click()
        expect(mine).to_contain_text("offloaded")
        page.get_by_role("link", name="People").click()
        page.get_by_label(f"Select the notebooks of {other}").check()
        page.get_by_role("button", name="Stop 1").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop 1").click()
        page.get_by_role("link", name="Now").click()
        expect(page.get_by_role("row").filter(has_text="secret.ipynb")).to_have_count(0)
        page.get_by_role("link", name="Audit").click()
        expect(page.get_by_role("region", name="Audit log").get_by_role("row").nth(1)).to_contain_text(
            f"{user}end session · secret.ipynb of {other}"
        )
        page.get_by_role("link", name="Connect").click()
        page.get_by_role("button", name="Make another token").click()
        expect(page.get_by_text("This one is shown once")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Your token")).to_be_visible()
        page.goto(stack.gateway_url)
        expect(page.get_by_label("Your token")).to_be_visible()
    finally:
        apart(end(*kernels))
