"""The gateway's status document, for commands; apart from `connection.py`, since relays need no msgspec."""

from __future__ import annotations

from urllib.parse import quote

from sharedkernel.client.gateway.connection import STATUS_PATH, fetch
from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.gateway.refusals import no_gateway
from sharedkernel.status.document import StatusDocument, read_status


def fetch_status(credentials: Credentials, *, about: str = "", timeout: float = 5.0) -> StatusDocument:
    """Return the status document as the token's user may see it; blocks until then.

    Parameters
    ----------
    credentials
        The gateway and the token.
    about
        What a large cluster's document must have, as the reader names it: a host, a user, a session; others ignore it.
    timeout
        Seconds to wait for the answer.

    Raises
    ------
    GatewayRefused
        When the gateway refuses, with its own sentence, or is none.
    GatewayUnreachable
        When it does not answer.
    ProtocolError
        When its document is one that this version cannot read.
    """
    path = f"{STATUS_PATH}?about={quote(about, safe='')}" if about else STATUS_PATH
    status = fetch(credentials, path, timeout=timeout)
    if not isinstance(status.get("device"), dict):
        raise no_gateway(credentials.url)
    return read_status(status, f"the gateway at {credentials.url}")
