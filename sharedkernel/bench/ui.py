"""What it costs to look on: JupyterLab's panel in a real browser while fifty sessions are there.

One session trains, so that there is something new in every status document; another runs a short cell now and then,
and the page notes when it shows that. Needs Playwright, a Chromium, and the JupyterLab extension built.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from sharedkernel.bench.stack.client import Notebook, open_notebook
from sharedkernel.bench.stack.results import BenchmarkFailed, Conditions, Result, Target, brief, percentile
from sharedkernel.bench.stack.servers import gateway_route
from sharedkernel.bench.stack.trainings import prepare, until_under_way
from sharedkernel.local_stack import LocalStack, Service, free_port

#: a browser in a container, without a screen and without asking the outside world for anything
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

_NUM_SESSIONS = 50
#: milliseconds that the page may take to show something
_PATIENCE = 120_000
#: seconds of the short cell: longer than the longest way of its news
_CELL = 1.5

#: leaves the machine time for those who are measured
_TRAIN = """
while True:
    training.iterate()
    time.sleep(0.02)
"""
_PANEL = "#sharedkernel-panel"
_TAB = '.lm-TabBar-tab[data-id="sharedkernel-panel"]'
#: notes when each card begins to show that its session is busy, by the place of the card
_WATCH = """
() => {
  window.seen = {};
  const panel = document.querySelector('#sharedkernel-panel');
  const note = () => panel.querySelectorAll('.sk-Card').forEach((card, place) => {
    const busy = card.querySelector('.sk-Dot.sk-mod-busy') !== null;
    const times = (window.seen[place] ??= []);
    if (busy !== (times.length % 2 === 1)) times.push(Date.now() / 1000);
  });
  new MutationObserver(note).observe(panel, {subtree: true, childList: true, attributes: true});
}
"""


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `ui`."""
    chromium = find_chromium()
    if chromium is None:
        raise BenchmarkFailed("no Chromium was found; install it, or name it in CHROMIUM.")
    with LocalStack(users=["ada"], **conditions.stack_options) as stack:
        return asyncio.run(_measure(conditions, stack, chromium))


def find_chromium() -> str | None:
    """Return the browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser"])), None)


async def _measure(conditions: Conditions, stack: LocalStack, chromium: str) -> list[Result]:
    seconds, repeats = conditions.effort.seconds(20), conditions.effort.runs(30)
    async with AsyncExitStack() as contexts:
        conditions.say(f"starting {_NUM_SESSIONS} sessions")
        route = gateway_route(stack)
        notebooks = [await contexts.enter_async_context(open_notebook(route)) for _ in range(_NUM_SESSIONS)]
        training, short = notebooks[:2]
        await prepare(training, "mlp", iteration_seconds=0.005)
        conditions.say("opening JupyterLab")
        page = await contexts.enter_async_context(_open_lab(stack, chromium))
        async with training.endless(_TRAIN):
            await until_under_way(stack, ["ada"])
            conditions.say(f"the panel closed for {seconds:g} s")
            closed, _ = await _processor_seconds(stack, seconds)
            await _show_panel(page)
            conditions.say(f"the panel open for {seconds:g} s")
            browser, gateway = await _processor_seconds(stack, seconds)
            conditions.say(f"{repeats} short cells")
            delays = await _delays(page, short, repeats)
    there = f"with JupyterLab's panel open, {_NUM_SESSIONS} sessions there and one of them training"
    return [
        Result(
            metric="browser_core",
            value=browser / seconds,
            unit="ratio",
            target=Target("<", 0.05),
            how=f"Processor time of all of the browser's processes over {seconds:g} s, {there}; "
            f"with the panel closed it was {closed / seconds:.3f}.",
        ),
        Result(
            metric="gateway_core",
            value=gateway / seconds,
            unit="ratio",
            target=Target("<", 0.01),
            how=f"Processor time of the gateway over the same {seconds:g} s.",
        ),
        Result(
            metric="event_p95_seconds",
            value=percentile(delays, 95),
            unit="seconds",
            target=Target("<", 0.25),
            how=f"From a cell's first line to the page showing its session busy, over {len(delays)} cells, {there}; "
            f"median {brief(percentile(delays, 50))}.",
        ),
    ]


async def _show_panel(page: Any) -> None:
    await page.locator(_TAB).click()
    await page.locator(f"{_PANEL} .sk-Card").nth(_NUM_SESSIONS - 1).wait_for()


async def _processor_seconds(stack: LocalStack, seconds: float) -> tuple[float, float]:
    """Return what the browser and the gateway use in *seconds*."""
    assert stack.gateway.process is not None
    gateway = psutil.Process(stack.gateway.process.pid)
    browser = [process for process in psutil.Process().children(recursive=True) if "chrom" in process.name()]
    if not browser:
        raise BenchmarkFailed("the browser's processes were not found.")
    before = _used(browser), _used([gateway])
    await asyncio.sleep(seconds)
    return _used(browser) - before[0], _used([gateway]) - before[1]


def _used(processes: Sequence[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


async def _delays(page: Any, notebook: Notebook, repeats: int) -> list[float]:
    """Return how long after its begin the page showed each of *repeats* short cells."""
    await page.evaluate(_WATCH)
    begun = []
    for _ in range(repeats):
        code = f"import json, time; begun = time.time(); time.sleep({_CELL}); print(json.dumps(begun))"
        begun.append(float(await notebook.value(code)))
        # At no fixed distance from the gateway's own beat.
        await asyncio.sleep(1 + random.random())
    seen: dict[str, list[float]] = await page.evaluate("window.seen")
    for times in seen.values():
        starts = times[::2]
        if len(starts) == repeats:
            return [shown - start for shown, start in zip(starts, begun, strict=True)]
    counts = sorted((len(times) for times in seen.values()), reverse=True)[:3]
    raise BenchmarkFailed(f"the page showed {counts} changes where there were {2 * repeats}.")


@asynccontextmanager
async def _open_lab(stack: LocalStack, chromium: str) -> AsyncIterator[Any]:
    """Open JupyterLab as the stack's first user; gives the page."""
    try:
        from playwright.async_api import Error, async_playwright
    except ImportError:
        raise BenchmarkFailed("it opens a browser with Playwright; run `pip install playwright`.") from None

    directory = Path(tempfile.mkdtemp(prefix="sk-ui-"))
    token, port = secrets.token_hex(16), free_port()
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"{url}/api", timeout=5).close()
        except OSError:
            return False
        return True

    private = {f"JUPYTER_{name}_DIR": str(directory / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    lab = Service(
        [
            "--no-browser", f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.allow_root=True",
            f"--ServerApp.root_dir={directory}", f"--IdentityProvider.token={token}",
        ],
        log_path=directory / "lab.log",
        is_ready=answers,
        scratch=directory,
        program="jupyterlab",
        name="JupyterLab",
        environment={**stack.client_environment(stack.users[0]), **private},
    )  # fmt: skip
    try:
        lab.start()
        await asyncio.to_thread(lab.wait_until_ready)
        async with async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
            page = await browser.new_page()
            page.set_default_timeout(_PATIENCE)
            await page.goto(f"{url}/lab?token={token}&reset")
            try:
                await page.locator(_TAB).wait_for()
            except Error:
                raise BenchmarkFailed(
                    "JupyterLab shows no panel; is its extension built (`python labextension/build_backend.py`)?"
                ) from None
            yield page
            await browser.close()
    finally:
        await asyncio.to_thread(lab.stop)
        shutil.rmtree(directory, ignore_errors=True)
