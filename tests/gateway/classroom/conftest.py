"""A gateway of its own, whose class every test ends; ada is an admin, the others are not."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.client import Answer
from tests.gateway.conftest import Stack, clean_gateway, run
from tests.gateway.page.browser import Browser

CLASS = "/sharedkernel/api/class"
PAGE = "/sharedkernel/page/invitation"


@pytest.fixture(scope="package")
def whole_class_stack() -> Iterator[Stack]:
    with Stack(
        users=["ada", "grace", "linus"],
        capacity="2GiB",
        quotas={"default": {"memory": "50%"}, "users": {"maria": {"share": 3}}},
        config="c.SharedKernelGateway.max_failed_logins = 8\nc.ServerApp.trust_xheaders = True",
    ) as stack:
        yield stack


@pytest.fixture
def stack(whole_class_stack: Stack) -> Iterator[Stack]:
    """Return the stack, with neither class nor session before and after the test."""
    yield from clean_gateway(whole_class_stack)

    async def end() -> None:
        ada = whole_class_stack.client("ada")
        for name in (await ada.request("GET", CLASS)).body["classes"]:
            assert (await ada.request("DELETE", f"{CLASS}?group={name}")).status in (200, 404)

    run(end())


def after(**duration: float) -> str:
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(**duration)).isoformat()


async def begin(stack: Stack, *users: str, hours: float = 1, group: str = "class", **limits: Any) -> dict[str, str]:
    """Begin a class; return the codes."""
    body = {"users": users, "limits": limits, "until": after(hours=hours)}
    answer = await stack.client("ada").request("PUT", f"{CLASS}?group={group}", body)
    assert answer.status == 200, answer
    return dict(answer.body["codes"])


async def accept(browser: Browser, code: str, **options: Any) -> Answer:
    """Open the link of an invitation and agree, as the page does."""
    page = await browser.request("GET", PAGE)
    assert page.status == 200
    return await browser.request("POST", f"{PAGE}/accept", {"code": code}, **options)


async def join(stack: Stack, code: str) -> str:
    """Return the token that an invitation gives."""
    answer = await accept(Browser(stack.gateway_url), code)
    assert answer.status == 200, answer
    return str(answer.body["install_command"].rpartition(" ")[2])
