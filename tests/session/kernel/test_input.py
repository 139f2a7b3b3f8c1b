"""Cells that ask their user."""

from __future__ import annotations

from tests.session.harness import PATIENCE, SessionUnderTest


def test_a_question_waits_for_a_client_that_is_away(session: SessionUnderTest) -> None:
    """As while a gateway is started again: it is asked once the socket for that is connected, however late."""
    client = session.client
    client.stdin_channel.stop()
    client._stdin_channel = None
    request = client.execute("print('asks', flush=True)\nprint('hello ' + input('who? '))", allow_stdin=True)
    session.until_printed("asks")
    client.stdin_channel.start()
    assert client.get_stdin_msg(timeout=PATIENCE)["content"]["prompt"] == "who? "
    client.input("ada")
    assert session.reply(request)["text"] == "hello ada\n"
