"""The pictures of the gateway's page in README and docs: three people at work on the processor, for some minutes.

``make pictures`` makes them anew, and those of JupyterLab, which `test_sharing.py` keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from sharedkernel.local_stack import LocalStack
from tests.browser.gateway_page import sign_in
from tests.browser.lab import keep_picture
from tests.gateway.client import Channels, Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: whose, in which notebook, on how many samples of how many channels
_TRAININGS = (
    ("ada", "digits.ipynb", 60_000, 1), ("grace", "fashion.ipynb", 25_000, 3), ("grace", "baseline.ipynb", 20_000, 1),
)  # fmt: skip
_DATA = """
import torch
from tqdm.auto import tqdm

images, labels = torch.randn({samples}, {channels}, 28, 28), torch.randint(10, ({samples},))
model = torch.nn.Sequential(
    torch.nn.Conv2d({channels}, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
    torch.nn.Linear(16 * 13 * 13, 10),
)
optimizer = torch.optim.Adam(model.parameters())
"""
_STEPS = """
for step in tqdm(range(12_000)):
    batch = torch.randint(len(images), (64,))
    loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
_EXPLORE = "import torch\nx = torch.randn(2000, 1000)"
_SHORT = "for _ in range(4):\n    y = x @ x.T\n    print(y.mean())"
#: short cells of the third person; their last one ends the scene
_CELLS = 6


@pytest.fixture
def stack(browser: Browser) -> Iterator[LocalStack]:
    """Three people, of whom ada is an admin."""
    quotas = {"default": {"memory": "50%", "share": 1, "sessions": 4}}
    with LocalStack(users=["ada", "grace", "linus"], capacity="1GiB", quotas=quotas) as stack:
        yield stack


async def _at_work(stack: LocalStack, is_ready: Event, is_pictured: Event) -> None:
    """Train in three notebooks of two people beside a third one's short cells, and stay until there are pictures."""
    async with AsyncExitStack() as open_notebooks:

        async def open_notebook(user: str, name: str) -> Channels:
            client = Client(stack.gateway_url, stack.token(user))
            kernel = await client.start(KERNEL_NOTEBOOK=name)
            return await open_notebooks.enter_async_context(client.attach(kernel))

        trainings: list[asyncio.Task[Any]] = []
        for user, name, samples, channels in _TRAININGS:
            notebook = await open_notebook(user, name)
            assert (await notebook.run(_DATA.format(samples=samples, channels=channels)))["status"] == "ok"
            trainings.append(asyncio.create_task(notebook.run(_STEPS)))
        notebook = await open_notebook("linus", "explore.ipynb")
        for code in (_EXPLORE, *[_SHORT] * _CELLS):
            await asyncio.sleep(4)  # a person reads
            assert (await notebook.run(code))["status"] == "ok"
        is_ready.set()
        await asyncio.to_thread(is_pictured.wait)
        for training in trainings:
            training.cancel()


def test_three_people_at_work(browser: Browser, stack: LocalStack) -> None:
    """The page shows their turns and memory, and their admin what all of them did."""
    is_ready, is_pictured = Event(), Event()
    context = browser.new_context(viewport={"width": 1000, "height": 800}, device_scale_factor=1.5)
    with ThreadPoolExecutor(1) as thread:
        scene = thread.submit(asyncio.run, _at_work(stack, is_ready, is_pictured))
        scene.add_done_callback(lambda _: is_ready.set())  # also when it fails
        try:
            page = context.new_page()
            page.goto(stack.gateway_url)
            sign_in(page, stack.token("ada"))
            assert is_ready.wait(600)
            if scene.done():
                scene.result()
            _keep_pictures(page)
        finally:
            is_pictured.set()
            context.close()
        scene.result(60)


def _keep_pictures(page: Page) -> None:
    """Keep one of what everybody sees, and one of what admins find."""
    names = ["digits.ipynb", "fashion.ipynb", "baseline.ipynb", "explore.ipynb"]
    page.get_by_role("link", name="Now").click()
    notebooks = page.get_by_role("region", name="Notebooks")
    for name in names:
        expect(notebooks).to_contain_text(name)
    keep_picture(page, "page", full_page=True)
    page.get_by_role("link", name="People").click()
    page.get_by_label("Select the notebooks of grace").check()
    keep_picture(page, "page-admin")
