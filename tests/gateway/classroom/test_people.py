"""People of no class: an admin lets newcomers in, with tokens that have no end."""

from __future__ import annotations

from sharedkernel.gateway.auth.tokens import TokenFile
from tests.gateway.classroom.conftest import CLASS, begin
from tests.gateway.client import Client
from tests.gateway.conftest import Stack

PEOPLE, ROSTER = "/sharedkernel/api/people", "/sharedkernel/api/roster"


async def test_newcomers_get_tokens_without_an_end(stack: Stack) -> None:
    """One each; they are good at once, and as those that the command makes."""
    tokens = TokenFile(stack.directory / "tokens.json")

    answer = await stack.client("ada").request("POST", PEOPLE, {"users": ["emmy", "lise"]})
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
    assert answer.body["tokens"].keys() == {"emmy", "lise"}
    for token in answer.body["tokens"].values():
        assert (await Client(stack.gateway_url, token).request("GET", "/api/kernels")).body == []
    made = [token for token in tokens.tokens().values() if token.user in ("emmy", "lise")]
    assert [(token.expires, token.group) for token in made] == [(None, None), (None, None)]
    tokens.remove("emmy", "lise")


async def test_who_is_no_newcomer_gets_none(stack: Stack) -> None:
    """Each refusal is a sentence, and then nobody of the same request gets one either."""
    tokens = TokenFile(stack.directory / "tokens.json")

    ada = stack.client("ada")
    await begin(stack, "maria")
    before = tokens.tokens()
    for users, status, sentence in [
        (["emmy", "grace"], 409, "grace is known here already"),
        (["maria", "grace"], 409, "maria, grace are known here already"),  # who has not used her link yet
        (["emmy", "ada"], 400, "ada is an admin here"),
        (["emmy", "emmy"], 400, "emmy is named twice"),
        (["../x"], 400, "cannot be a user's name"),
        ([], 400, "length >= 1"),
        ([f"u{n}" for n in range(501)], 400, "length <= 500"),
    ]:
        refused = await ada.request("POST", PEOPLE, {"users": users})
        assert refused.status == status, refused
        assert sentence in refused.body["message"], refused
    refused = await stack.client("grace").request("POST", PEOPLE, {"users": ["emmy"]})
    assert (refused.status, refused.body["reason"]) == (403, "not_admin")
    assert tokens.tokens() == before


async def test_a_pasted_roster_is_read_as_the_command_reads_a_file(stack: Stack) -> None:
    """Nobody is let in by that; what is no roster is refused, and so are others than admins."""
    ada = stack.client("ada")
    for text, users in [
        ("name,email\nEmmy Noether,emmy@x.org\nLise Meitner,lise@x.org", ["emmy", "lise"]),
        ("emmy\n lise \n", ["emmy", "lise"]),
        (" emmy, lise; otto hahn\n", ["emmy", "lise", "otto", "hahn"]),
    ]:
        read = await ada.request("POST", ROSTER, {"text": text})
        assert (read.status, read.body) == (200, {"users": users})
    for text, sentence in [
        ("Emmy Noether\nLise Meitner", "text, line 1: 'Emmy Noether' cannot be a user's name"),
        ("emmy lise lise emmy otto", "emmy, lise are named twice"),
        ("emmy ada", "ada is an admin here"),
        (" , ", "no column is called"),
    ]:
        refused = await ada.request("POST", ROSTER, {"text": text})
        assert (refused.status, sentence in refused.body["message"]) == (400, True), refused
    refused = await stack.client("grace").request("POST", ROSTER, {"text": "emmy"})
    assert (refused.status, refused.body["reason"]) == (403, "not_admin")
    assert (await ada.request("GET", CLASS)).body["classes"] == {}
