"""The page of a cluster's front: its hosts, and where everybody's notebooks are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sharedkernel._version import __version__
from tests.browser.gateway_page import OpenPage, apart, sign_in
from tests.browser.lab import keep_picture
from tests.gateway.hosts.conftest import HOSTS, Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def page(open_window: OpenPage, cluster: Cluster) -> Page:
    """Return the page of an admin at the first front."""
    page = open_window(cluster.gateway_url)
    sign_in(page, cluster.token("ada"))
    page.get_by_role("link", name="Now").click()
    return page


def test_hosts_are_listed_and_one_that_is_away_comes_first(page: Page, cluster: Cluster) -> None:
    """With what is known of each; a notebook says where it is, also while nobody answers there."""

    async def start() -> str:
        grace = cluster.client("grace")
        kernel = await grace.start(KERNEL_NOTEBOOK="train.ipynb")
        async with grace.attach(kernel) as channels:
            assert (await channels.run("import torch; kept = torch.ones(16 << 18)"))["status"] == "ok"
        sessions: list[dict[str, Any]] = (await grace.request("GET", "/sharedkernel/api/status")).body["sessions"]
        return next(str(entry["host"]) for entry in sessions if entry["kernel_id"] == kernel)

    host = apart(start())
    table = page.get_by_role("region", name="Hosts").get_by_role("table")
    rows = table.get_by_role("row")
    for name in HOSTS:
        row = rows.filter(has=page.get_by_role("rowheader", name=name, exact=True))
        expect(row.get_by_role("cell")).to_have_text(["answers", "1", "1" if name == host else "0", __version__])
    expect(page.get_by_role("row").filter(has_text="train.ipynb")).to_contain_text(f"{host}/host")
    for name in HOSTS:
        expect(page.get_by_role("region", name="Devices")).to_contain_text(f"demo device · {name}/host")
    keep_picture(page, "gateway-page-hosts", full_page=True)
    cluster.hosts[host].gateway.stop()
    expect(rows.nth(1).get_by_role("rowheader")).to_have_text(host)
    expect(rows.nth(1)).to_contain_text("away")
    cluster.hosts[host].gateway.start()
    expect(rows.nth(1)).to_contain_text("answers")
    expect(page.get_by_role("row").filter(has_text="train.ipynb")).to_be_visible()
