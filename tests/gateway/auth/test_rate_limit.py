"""The limit on wrong tokens: whom it stops, and whom it must not."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.gateway.auth.rate_limit import LoginLimit, TooManyFailures
from tests.gateway.client import Client
from tests.gateway.conftest import Stack, run


def guess(limit: LoginLimit, address: str, token: str, now: float) -> bool:
    """Show a wrong token; return whether it was looked at."""
    try:
        limit.attempt(address, token, now=now)
    except TooManyFailures:
        return False
    limit.failed(token)
    return True


def test_an_address_may_show_so_many_wrong_tokens_in_a_window() -> None:
    """No more are looked at, until one of those is old enough; the refusal says when."""
    limit = LoginLimit(3, 60)
    assert [guess(limit, "10.0.0.1", f"t{n}", now=float(n)) for n in range(5)] == [True, True, True, False, False]
    with pytest.raises(TooManyFailures) as refused:
        limit.attempt("10.0.0.1", "t9", now=10.0)
    assert refused.value.retry_after == 50.0
    assert guess(limit, "10.0.0.2", "t9", now=10.0)
    assert guess(limit, "10.0.0.1", "t9", now=60.0)


def test_what_was_right_goes_on_working_until_it_is_not() -> None:
    """Others behind the same address do not pay for who guesses; a revoked token counts as wrong again."""
    limit = LoginLimit(2, 60)
    limit.attempt("10.0.0.1", "right", now=0.0)
    limit.succeeded("10.0.0.1", "right")
    assert [guess(limit, "10.0.0.1", f"t{n}", now=1.0) for n in range(3)] == [True, True, False]
    limit.attempt("10.0.0.1", "right", now=2.0)
    limit.failed("right")
    assert not guess(limit, "10.0.0.1", "right", now=3.0)


def test_one_wrong_token_is_one_guess_however_often() -> None:
    """A forgotten notebook with an old token locks nobody out, and a hub that cannot be asked costs nothing."""
    limit = LoginLimit(2, 60)
    assert all(guess(limit, "10.0.0.1", "old", now=float(n)) for n in range(100))
    limit.attempt("10.0.0.1", "unsure", now=100.0)
    limit.withdraw("10.0.0.1", "unsure")
    assert guess(limit, "10.0.0.1", "other", now=100.0)


def test_an_ipv6_host_is_one_place_whichever_of_its_addresses_it_uses() -> None:
    """A /64 counts as one."""
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


def test_those_who_come_at_once_wait_for_each_other_and_are_no_guessers() -> None:
    """However slowly it is found out that a token is right; one that is known does not wait."""

    async def scenario() -> None:
        limit, may_end = LoginLimit(6, 60), asyncio.Event()
        under_way: set[str] = set()

        async def come(token: str) -> None:
            async with limit.turn("10.0.0.1", token):
                limit.attempt("10.0.0.1", token, now=0.0)
                under_way.add(token)
                await may_end.wait()
                limit.succeeded("10.0.0.1", token)

        limit.succeeded("10.0.0.1", "known")
        coming = [asyncio.create_task(come(f"t{number}")) for number in range(20)]
        coming.append(asyncio.create_task(come("known")))
        while "known" not in under_way:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert under_way == {"t0", "t1", "known"}
        may_end.set()
        await asyncio.gather(*coming)
        assert len(under_way) == 21

    run(scenario())


def test_a_guesser_is_stopped_and_users_at_the_same_address_are_not(stack: Stack) -> None:
    """Many guesses at once are refused with 429 and when to try again; known tokens go on working."""

    async def scenario() -> None:
        grace = stack.client("grace")
        assert (await grace.request("GET", "/api/kernels")).status == 200
        guesses = [Client(stack.gateway_url, f"sk-{n:08x}-{n:064x}") for n in range(40)]
        answers = await asyncio.gather(*(guess.request("GET", "/api/kernels") for guess in guesses))
        refused = [answer for answer in answers if answer.status == 429]
        assert {answer.status for answer in answers} == {403, 429}
        assert sum(answer.status == 403 for answer in answers) <= 30
        assert refused[0].body["reason"] == "too_many_failures"
        assert int(refused[0].headers["Retry-After"]) > 0
        assert (await grace.request("GET", "/api/kernels")).status == 200
        kernel = await grace.start()
        async with grace.attach(kernel) as channels:
            assert (await channels.run("1 + 1"))["text"] == "2"

    try:
        run(scenario())
    finally:
        stack.gateway.stop()
        stack.restart_gateway()
