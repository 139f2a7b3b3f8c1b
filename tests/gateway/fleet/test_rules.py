"""The colour of each user: chosen at their first session, and the same for everybody from then on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.gateway.fleet.rules import COLOURS, UserColours
from tests.gateway.conftest import Stack
from tests.status.documents import to_json

#: prints what widgets are shown
IN_SESSION = """
import json, queue
from sharedkernel.ipc import current_session
documents = queue.Queue()
current_session.subscribe(documents.put)
print(json.dumps({user.name: user.colour for user in documents.get(timeout=20).users if user.colour}))
"""


async def colours_for(stack: Stack, viewer: str) -> dict[str, Any]:
    """Return the colours of the users who have one, in the document that *viewer* may see."""
    status = (await stack.client(viewer).request("GET", "/sharedkernel/api/status")).body
    return {user["name"]: user["colour"] for user in status["users"] if "colour" in user}


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_differ_and_are_readable_in_both_themes() -> None:
    """There are 50, whose contrast is at least 3 to 1 on white and on the dark theme."""
    assert len(set(COLOURS)) == len(COLOURS) == 50
    for colour in COLOURS:
        assert 1.05 / (luminance(colour) + 0.05) >= 3
        assert (luminance(colour) + 0.05) / (luminance("#111111") + 0.05) >= 3


def test_users_get_the_next_free_colour_and_keep_it(tmp_path: Path) -> None:
    """In the order of their first sessions, or one that they prefer and that is free; the next gateway has the same.

    No colour has three users before every colour has two.
    """
    colours = UserColours(tmp_path / "colours.json")
    assert colours.get("zoe") is None
    assert [colours.choose(user) for user in ("zoe", "ada", "zoe")] == [COLOURS[0], COLOURS[1], COLOURS[0]]
    again = UserColours(tmp_path / "colours.json")
    assert [again.choose(user) for user in ("bob", "ada", "zoe")] == [COLOURS[2], COLOURS[1], COLOURS[0]]
    assert [again.choose(user, COLOURS[7]) for user in ("eve", "bob", "mallory")] == [
        COLOURS[7],
        COLOURS[2],
        COLOURS[3],
    ]
    assert again.choose("dan", "url(//elsewhere)") == COLOURS[4]
    many = UserColours(tmp_path / "many.json")
    assert sorted(many.choose(f"student{number}") for number in range(100)) == sorted(COLOURS * 2)


@pytest.mark.heavy
async def test_a_colour_is_the_same_for_all_viewers_and_days() -> None:
    """In an admin's document, a user's and that of widgets; the first users keep theirs when others come and go.

    The only executor is found whichever device it serves: status is as it always was.
    """
    in_order = dict(zip(("linus", "grace", "ada"), COLOURS, strict=False))
    # quotas name a user who is never there
    quotas = {"users": {"aaron": {"sessions": 1}}}
    with Stack(users=["ada", "grace", "linus"], devices=["host:1"], capacity="2GiB", quotas=quotas) as stack:
        linus, grace, ada = (stack.client(user) for user in in_order)
        first = await linus.start()
        await grace.start()
        await linus.end(first)
        kernel = await ada.start()
        for viewer in in_order:
            assert await colours_for(stack, viewer) == in_order
        async with ada.attach(kernel) as channels:
            assert json.loads((await channels.run(IN_SESSION))["text"]) == in_order
        stack.gateway.stop()
        stack.restart_gateway()
        await linus.start()
        for viewer in in_order:
            assert await colours_for(stack, viewer) == in_order
        status = to_json(stack.status())
    assert status["device"]["name"].startswith("host:1 (")
    assert "devices" not in status
    assert "device" not in status["sessions"][0]
