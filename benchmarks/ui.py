"""What it costs to look on: JupyterLab's panel and the gateway's page in a real browser, with 200 sessions of 50 users.

One session trains, so that there is something new in every status document; another runs a short cell now and then,
and the browser notes when it shows that. Needs Playwright, a Chromium, and the JupyterLab extension built.
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

from benchmarks.stack.client import Notebook, open_notebook
from benchmarks.stack.results import BenchmarkFailed, Conditions, Result, Target, brief, percentile
from benchmarks.stack.servers import gateway_route
from benchmarks.stack.trainings import prepare, until_under_way
from sharedkernel.local_stack import LocalStack, free_port
from sharedkernel.services import Service

#: a browser in a container, without a screen and without asking the outside world for anything
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

_NUM_USERS, _NUM_SESSIONS = 50, 200
#: of the device: what so many sessions hold before they compute, and the training
_CAPACITY = "8GiB"
#: sessions that start at a time
_STARTS = 8
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
#: seconds after which what was opened is drawn, with its history and timeline
_OPENING = 5.0
_PANEL, _PAGE = "#sharedkernel-panel", "#page"
_TAB = '.lm-TabBar-tab[data-id="sharedkernel-panel"]'
#: notes when each row begins to show that its session is busy, by the place of the row
_WATCH = """
place => {
  window.seen = {};
  const shown = document.querySelector(place);
  const note = () => shown.querySelectorAll('.sk-Row').forEach((row, place) => {
    const busy = row.querySelector('.sk-Dot.sk-mod-busy') !== null;
    const times = (window.seen[place] ??= []);
    if (busy !== (times.length % 2 === 1)) times.push(Date.now() / 1000);
  });
  new MutationObserver(note).observe(shown, {subtree: true, childList: true, attributes: true});
}
"""


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `ui`."""
    chromium = find_chromium()
    if chromium is None:
        raise BenchmarkFailed("no Chromium was found; install it, or name it in CHROMIUM.")
    users = [f"user-{number}" for number in range(_NUM_USERS)]
    with LocalStack(users=users, **{**conditions.stack_options, "capacity": _CAPACITY}) as stack:
        return asyncio.run(_measure(conditions, stack, chromium))


def find_chromium() -> str | None:
    """Return the browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser"])), None)


async def _measure(conditions: Conditions, stack: LocalStack, chromium: str) -> list[Result]:
    seconds, repeats = conditions.effort.seconds(20), conditions.effort.runs(30)
    results: list[Result] = []
    async with AsyncExitStack() as contexts:
        conditions.say(f"starting {_NUM_SESSIONS} sessions of {_NUM_USERS} users")
        notebooks = await _start_all(stack, contexts)
        short, training = notebooks[:2]  # of the user who looks on, and of another one
        await prepare(training, "mlp", iteration_seconds=0.005)
        browser = await contexts.enter_async_context(_open_browser(chromium))
        async with training.endless(_TRAIN):
            await until_under_way(stack, [stack.users[1]])
            for what, prefix, shown in (
                ("JupyterLab's panel", "", _open_panel(stack, browser)),
                ("the gateway's page", "page_", _open_page(stack, browser)),
            ):
                conditions.say(f"opening {what}")
                async with shown as (page, place):
                    await asyncio.sleep(_OPENING)
                    conditions.say(f"{what} for {seconds:g} s")
                    used = await _processor_seconds(stack, seconds)
                    conditions.say(f"{repeats} short cells")
                    delays = await _delays(page, place, short, repeats)
                results += _results(what, prefix, seconds, used, delays)
    return results


async def _start_all(stack: LocalStack, contexts: AsyncExitStack) -> list[Notebook]:
    """Start the sessions, those of a user far apart; the first is the first user's, the second the second's."""
    turns = asyncio.Semaphore(_STARTS)

    async def start(number: int) -> Notebook:
        route = gateway_route(stack, stack.users[number % _NUM_USERS])
        async with turns:
            return await contexts.enter_async_context(open_notebook(route))

    return list(await asyncio.gather(*map(start, range(_NUM_SESSIONS))))


def _results(
    what: str, prefix: str, seconds: float, used: tuple[float, float], delays: Sequence[float]
) -> list[Result]:
    there = f"with {what} open, {_NUM_SESSIONS} sessions of {_NUM_USERS} users there and one of them training"
    return [
        Result(
            metric=f"{prefix}browser_core",
            value=used[0] / seconds,
            unit="ratio",
            target=Target("<", 0.05),
            how=f"Processor time of all of the browser's processes over {seconds:g} s, {there}.",
        ),
        Result(
            metric=f"{prefix}gateway_core",
            value=used[1] / seconds,
            unit="ratio",
            target=Target("<", 0.01),
            how=f"Processor time of the gateway over the same {seconds:g} s.",
        ),
        Result(
            metric=f"{prefix}event_p95_seconds",
            value=percentile(delays, 95),
            unit="seconds",
            target=Target("<", 0.25),
            how=f"From a cell's first line to its session being shown as busy, over {len(delays)} cells, {there}; "
            f"median {brief(percentile(delays, 50))}.",
        ),
    ]


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


async def _delays(page: Any, place: str, notebook: Notebook, repeats: int) -> list[float]:
    """Return how long after its begin the rows at *place* showed each of *repeats* short cells."""
    await page.evaluate(_WATCH, place)
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
async def _open_browser(chromium: str) -> AsyncIterator[Any]:
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        raise BenchmarkFailed("it opens a browser with Playwright; run `pip install playwright`.") from None
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
        yield browser
        await browser.close()


@asynccontextmanager
async def _open_page(stack: LocalStack, browser: Any) -> AsyncIterator[tuple[Any, str]]:
    """Open the gateway's page as the stack's first user; gives it, and where its rows are."""
    page = await browser.new_page()
    page.set_default_timeout(_PATIENCE)
    await page.goto(stack.gateway_url)
    await page.get_by_label("Your token").fill(stack.token(stack.users[0]))
    await page.get_by_role("button", name="Sign in").click()
    await page.locator(f"{_PAGE} .sk-Row").first.wait_for()
    yield page, _PAGE
    await page.close()


@asynccontextmanager
async def _open_panel(stack: LocalStack, browser: Any) -> AsyncIterator[tuple[Any, str]]:
    """Open JupyterLab and its panel as the stack's first user; gives the page, and where its rows are."""
    async with _lab(stack) as url:
        page = await browser.new_page()
        page.set_default_timeout(_PATIENCE)
        await page.goto(url)
        await page.wait_for_function("window.jupyterapp?.restored.then(() => true)")
        if not await page.locator(_TAB).count():
            raise BenchmarkFailed(
                "JupyterLab shows no panel; is its extension built (`python labextension/build_backend.py`)?"
            )
        await page.locator(_TAB).click()
        await page.locator(f"{_PANEL} .sk-Row").first.wait_for()
        yield page, _PANEL
        await page.close()


@asynccontextmanager
async def _lab(stack: LocalStack) -> AsyncIterator[str]:
    """Run a JupyterLab of the stack's first user; gives its address for a browser."""
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
            "--no-browser", "--LabApp.expose_app_in_browser=True", f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0", "--ServerApp.allow_root=True",
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
        yield f"{url}/lab?token={token}&reset"
    finally:
        await asyncio.to_thread(lab.stop)
        shutil.rmtree(directory, ignore_errors=True)
