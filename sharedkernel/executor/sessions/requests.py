"""Validate requests to start a session.

Clients that may send one are trusted (`handshake.py`), but they forward what users wrote. A name, a path or a
variable that the operating system cannot accept is refused here, before a process is assigned to the user.
"""

from __future__ import annotations

from collections.abc import Iterable

from sharedkernel import protocol
from sharedkernel.errors import Refused
from sharedkernel.executor.dispatch.usage import user_configured

#: bytes of all texts of a request together: they are kept in one packet, and said again in every list of sessions
_MOST_TEXT = 48 << 10


def check_start(message: protocol.StartSession) -> None:
    """Look at all that comes from outside.

    Raises
    ------
    Refused
        When a session cannot be started so.
    """
    for what, text in (
        ("session id", message.session), ("user name", message.limits.user), ("notebook", message.notebook),
        ("working directory", message.cwd),
    ):  # fmt: skip
        if text is not None and ("\0" in text or not text.isprintable()):
            raise _bad(f"the {what} {text!r} has characters in it that no name has.")
    if not message.session or not message.limits.user:
        raise _bad("a session needs an id and a user.")
    _check_length([message.session, message.limits.user, message.notebook, message.cwd, message.client_key,
                   message.kernel, message.notice, *message.env.keys(), *message.env.values()])  # fmt: skip
    for name, value in message.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise _bad(f"{name!r} cannot be set to {value!r} in a session's environment.")
    user_configured(message.limits)


def check_reclaim(message: protocol.ReclaimSession) -> None:
    """Look at all that comes from outside.

    Raises
    ------
    Refused
        When a session cannot be given so.
    """
    _check_length([message.kernel, message.notebook, message.client_key])


def _check_length(texts: Iterable[str | None]) -> None:
    length = sum(len(text.encode(errors="surrogatepass")) for text in texts if text is not None)
    if length > _MOST_TEXT:
        raise _bad(f"what belongs to it is {length} bytes of text, more than the {_MOST_TEXT} that it may be.")


def _bad(sentence: str) -> Refused:
    return Refused(sentence, reason="bad_request")
