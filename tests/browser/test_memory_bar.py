"""The device's bar goes up with what a notebook makes, and down with what it frees."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from sharedkernel.local_stack import LocalStack
from tests.browser.gateway_page import apart, gateway_page, sign_in
from tests.gateway.client import Client

pytestmark = [pytest.mark.heavy, pytest.mark.beside_busy_loops]

_TRAIN = """\
import torch
model = torch.nn.Linear(1000, 1000)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(50):
    optimizer.zero_grad()
    model(torch.ones(256, 1000)).square().mean().backward()
    optimizer.step()
"""


def test_one_tensor_in_an_idle_notebook(browser: Browser) -> None:
    """It counts once, leaves the rest to the next notebook and its training, and goes when it is freed."""
    with LocalStack(users=["ada"], capacity="4GiB") as stack, gateway_page(browser, stack.gateway_url) as page:
        client = Client(stack.gateway_url, stack.token("ada"))
        sign_in(page, stack.token("ada"))
        bar = page.get_by_role("region", name="Device").get_by_role("img").first

        def run(kernel: str, code: str) -> None:
            async def cell() -> None:
                async with client.attach(kernel) as channels:
                    reply = await channels.run(code)
                    assert reply["status"] == "ok", reply
                while await channels.receive() is not None:
                    pass  # its end, before the loop's

            apart(cell())

        def says(in_use: str) -> None:
            expect(bar).to_have_attribute("aria-label", re.compile(rf"^\S.*: {in_use} of 4\.0 GiB in use"))

        first, second = apart(client.start(KERNEL_NOTEBOOK="a.ipynb")), apart(client.start(KERNEL_NOTEBOOK="b.ipynb"))
        run(second, "import torch\nbig = torch.ones(600_000_000)")
        says(r"2\.[23] GiB")
        run(first, "import torch\ny = torch.ones(50_000_000)")
        says(r"2\.[45] GiB")
        run(first, _TRAIN)
        says(r"2\.[45] GiB")
        run(second, "del big")
        says(r"2\d\d MiB")
        run(first, "%reset -f")
        says(r"(\d\d\.\d|1[0-4]\d) MiB")
