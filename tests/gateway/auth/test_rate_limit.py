"""The limit on wrong tokens: whom it stops, and whom it must not."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.rate_limit import LoginLimit
from tests.gateway.client import Client
from tests.gateway.conftest import Stack


def guess(limit: LoginLimit, address: str, token: str, now: float) -> bool:
    """Show a wrong token; return whether it is one of those that are not too many."""
    try:
        limit.failed(address, token, now=now)
    except Refused:
        return False
    return True


def test_an_address_may_show_so_many_wrong_tokens_in_a_window() -> None:
    """The answer to more says so, until one of those is old enough; it says when."""
    limit = LoginLimit(3, 60)
    assert [guess(limit, "10.0.0.1", f"t{n}", now=float(n)) for n in range(5)] == [True, True, True, False, False]
    with pytest.raises(Refused) as refused:
        limit.failed("10.0.0.1", "t9", now=10.0)
    assert (refused.value.reason, refused.value.retry_after) == ("too_many_failures", 50.0)
    assert guess(limit, "10.0.0.2", "t9", now=10.0)
    assert guess(limit, "10.0.0.1", "t9", now=60.0)


def test_what_counts_as_one_guess() -> None:
    """One wrong token, however often, a revoked one that was right before, and a /64 of IPv6 as one place."""
    limit = LoginLimit(2, 60)
    limit.succeeded("revoked")
    assert all(guess(limit, "10.0.0.1", "revoked", now=float(n)) for n in range(100))
    assert guess(limit, "10.0.0.1", "other", now=100.0)
    assert not guess(limit, "10.0.0.1", "another", now=100.0)
    limit = LoginLimit(1, 60)
    assert guess(limit, "2001:db8::1", "a", now=0.0)
    assert not guess(limit, "2001:db8::ffff", "b", now=0.0)
    assert guess(limit, "2001:db8:0:1::1", "b", now=0.0)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 30)), max_size=60))
def test_never_more_different_wrong_tokens_than_allowed_in_any_window(shown: list[tuple[int, float]]) -> None:
    """Whatever is shown when."""
    limit, now, looked_at = LoginLimit(3, 60), 0.0, []
    for token, pause in shown:
        now += pause
        if guess(limit, "10.0.0.1", str(token), now):
            looked_at.append((now, token))
    for end, _ in looked_at:
        assert len({token for when, token in looked_at if end - 60 < when <= end}) <= 3


@pytest.mark.parametrize(("num_wrong", "at_a_time"), [(0, 2), (6, 1)])
async def test_the_new_tokens_of_an_address_are_checked_a_few_at_a_time(num_wrong: int, at_a_time: int) -> None:
    """However slowly that is; all are checked in the end, and one that is known to be right does not wait."""
    limit, may_end = LoginLimit(6, 60), asyncio.Event()
    under_way: list[str] = []

    async def come(token: str) -> None:
        async with limit.turn("10.0.0.1", token, now=0.0):
            under_way.append(token)
            await may_end.wait()
            limit.succeeded(token)

    for number in range(num_wrong):
        guess(limit, "10.0.0.1", f"wrong{number}", now=0.0)
    limit.succeeded("known")
    coming = [asyncio.create_task(come(f"t{number}")) for number in range(20)]
    coming.append(asyncio.create_task(come("known")))
    while "known" not in under_way:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert sorted(under_way) == sorted(["known", "t0", "t1"][: 1 + at_a_time])
    may_end.set()
    await asyncio.gather(*coming)
    assert len(under_way) == 21


@pytest.mark.heavy
async def test_a_guesser_locks_out_nobody_behind_the_same_address(stack: Stack) -> None:
    """Many guesses are answered with 429 and when to try again; a token that nobody has used yet works all the same."""
    stack.gateway.kill()  # which has seen mary's token before
    stack.restart_gateway()
    try:
        guesses = [Client(stack.gateway_url, f"sk-{n:08x}-{n:064x}") for n in range(40)]
        answers = await asyncio.gather(*(guess.request("GET", "/api/kernels") for guess in guesses))
        refused = [answer for answer in answers if answer.status == 429]
        assert {answer.status for answer in answers} == {403, 429}
        assert sum(answer.status == 403 for answer in answers) <= 30
        assert refused[0].body["reason"] == "too_many_failures"
        assert int(refused[0].headers["Retry-After"]) > 0
        newcomer = stack.client("mary")
        assert (await newcomer.request("GET", "/api/kernels")).status == 200
        kernel = await newcomer.start()
        async with newcomer.attach(kernel) as channels:
            assert (await channels.run("1 + 1"))["text"] == "2"
    finally:
        stack.gateway.kill()  # the next one knows of no guesses
