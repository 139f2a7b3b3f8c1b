"""The two errors of every request to a gateway, and their sentences for the user."""

from __future__ import annotations

import json

from sharedkernel.client.gateway.credentials import CA_VARIABLE
from sharedkernel.errors import Refused, SharedKernelError

#: where a gateway's routes are that no other server has
_OWN_ROUTES = "/sharedkernel/"
#: the routes of users' files that are Jupyter's
_CONTENTS = ("/api/contents", "/files/")


class GatewayRefused(Refused):
    """The gateway said no; its sentence is the message.

    Parameters
    ----------
    message, reason
        As the gateway gave them.
    status
        HTTP status.
    """

    def __init__(self, message: str, *, status: int, reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.status = status

    @property
    def is_passing(self) -> bool:
        """Whether the same request may be granted a little later."""
        return self.status in (408, 409, 429) or self.status >= 500


class GatewayUnreachable(SharedKernelError):
    """The gateway did not answer."""

    reason = "gateway_unreachable"


def no_gateway(url: str) -> GatewayRefused:
    """Return the error for an answer that no gateway gives."""
    return GatewayRefused(
        f"what answers at {url} is not a gateway for shared devices; check the address.", status=200, reason="address"
    )


def no_subprotocol(url: str, name: str) -> GatewayRefused:
    """Return the error for a gateway that does not frame messages as *name* does."""
    return GatewayRefused(
        f"the gateway at {url} does not speak {name}; it needs a newer jupyter_server.",
        status=101,
        reason="websocket_protocol",
    )


def untrusted(url: str, why: str) -> GatewayRefused:
    """Return the error for a certificate that cannot be trusted, and *why*."""
    return GatewayRefused(
        f"the certificate of the gateway at {url} cannot be trusted ({why}); if an authority of your own signed it, "
        f"run `sharedkernel install` with --ca FILE, or name the file in {CA_VARIABLE}; the gateway's page may have a "
        "command that trusts this certificate alone.",
        status=495,
        reason="certificate",
    )


def too_slow(url: str) -> GatewayUnreachable:
    """Return the error for a gateway that accepts a connection and does not answer."""
    return GatewayUnreachable(
        f"the gateway at {url} is there but took too long to answer; try again, and if it stays so, ask its admin to "
        "look at its log and at its executors'."
    )


def unreachable(url: str, why: object, *, hung_up: bool) -> GatewayUnreachable:
    """Return the error for a gateway that gives no answer.

    Parameters
    ----------
    url
        Of the gateway.
    why
        In the system's words.
    hung_up
        Whether there was a connection, which ended: a server that expects TLS ends one without.
    """
    if hung_up and url.startswith("http:"):
        return GatewayUnreachable(
            f"what answers at {url} hung up ({why}); if the gateway encrypts, its address begins with https://."
        )
    return GatewayUnreachable(
        f"no gateway answers at {url} ({why}); is it running, is the address right, is the network up?"
    )


def refused(url: str, status: int, phrase: str, body: bytes, path: str = "") -> GatewayRefused:
    """Return the error for an answer that is a refusal.

    Parameters
    ----------
    url
        Of the gateway.
    status, phrase, body
        Of its answer.
    path
        What was requested.
    """
    message, reason = _read_refusal(body)
    if message is None and path.startswith(_CONTENTS) and b"<" not in body:  # a sentence without JSON around it
        message = "".join(filter(str.isprintable, body.decode(errors="replace"))) or None
    # What serves a user's files says why, too, in a sentence without a slug.
    if status in (401, 403) and not reason and not (message and path.startswith(_CONTENTS)):
        message = (
            f"the gateway at {url} does not accept this token; ask its admin for one (a class's ends with the class), "
            f"and run the command on its page with it, or `sharedkernel install --gateway-url {url} --token TOKEN`."
        )
    elif status == 404 and not message and path.startswith(_OWN_ROUTES):
        route = path.partition("?")[0]
        message = f"what answers at {url} is not a gateway for shared devices, or an older one: it has no {route}."
    elif not message:
        message = f"the gateway at {url} answered {status} {phrase}."
    return GatewayRefused(message, status=status, reason=reason)


def _read_refusal(body: bytes) -> tuple[str | None, str | None]:
    """Return the sentence and the slug of a gateway's JSON answer, as far as they are there."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return None, None
    message, reason = answer.get("message"), answer.get("reason")
    return (message if isinstance(message, str) else None), (reason if isinstance(reason, str) else None)
