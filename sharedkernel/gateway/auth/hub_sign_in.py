"""Signing in on the gateway's page with JupyterHub (OAuth 2, with PKCE where the jupyterhub package has it).

The browser is sent to the hub, which sends it back with a code; the gateway exchanges the code for a token of the user,
with its own token as the secret. From then on this token is treated as one that was typed: it stays in the page
session, and is checked with each request. What the browser has to bring back is kept in its own cookie alone, so that
whoever begins any number of sign-ins fills nothing here.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

from tornado.web import HTTPError

#: seconds that the hub may take to answer, and that somebody may take to sign in there
_TIMEOUT, SIGN_IN_SECONDS = 10.0, 600


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in that has begun; the browser keeps it in a cookie until it is back from the hub."""

    #: comes back from the hub, and shows that this browser has begun the sign-in
    state: str
    #: shows the hub that the code is used by who asked for it
    verifier: str

    @classmethod
    def new(cls) -> Self:
        """Return another one, which nobody can guess."""
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32))

    @classmethod
    def from_cookie(cls, value: str) -> Self | None:
        """Return what :attr:`cookie` said; None for anything else."""
        state, dot, verifier = value.partition(".")
        return cls(state, verifier) if state and dot and verifier else None

    @property
    def cookie(self) -> str:
        """The cookie's value."""
        return f"{self.state}.{self.verifier}"

    @property
    def challenge(self) -> str:
        """The challenge that the hub gets before it sees the verifier (RFC 7636)."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def has_state(self, state: str) -> bool:
        """Whether the hub has sent the browser back with the *state* of this sign-in."""
        return hmac.compare_digest(self.state.encode(), state.encode())


class HubSignIn:
    """The hub's side of signing in.

    Parameters
    ----------
    hub_url
        Address of the hub for browsers, with its prefix.
    gateway
        Has the settings of the jupyterhub package's client.
    """

    def __init__(self, hub_url: str, gateway: Any) -> None:
        self._hub_url = hub_url.rstrip("/")
        self._gateway = gateway

    def is_possible(self) -> bool:
        """Whether it is known which service this is, and its secret."""
        hub = self._oauth()
        return bool(self._hub_url and hub.api_token and hub.oauth_client_id)

    def address(self, pending: PendingSignIn, redirect_uri: str) -> str:
        """Return where to send a browser.

        Parameters
        ----------
        pending
            The sign-in that begins.
        redirect_uri
            Address at which the hub sends it back.
        """
        hub = self._oauth()
        query = {
            "client_id": hub.oauth_client_id,
            "redirect_uri": redirect_uri,
            "response_type": "code",
            "state": pending.state,
        }
        if _has_pkce(hub):
            query |= {"code_challenge": pending.challenge, "code_challenge_method": "S256"}
        return f"{self._hub_url}/api/oauth2/authorize?{urlencode(query)}"

    async def token_for(self, code: str, pending: PendingSignIn, redirect_uri: str) -> str | None:
        """Return the user's token for a *code* that the hub has sent; None where the hub does not accept it.

        Parameters
        ----------
        code
            From the hub, by way of the browser.
        pending
            The sign-in that ends.
        redirect_uri
            As it was when it began.
        """
        hub = self._oauth(oauth_redirect_uri=redirect_uri)
        try:
            async with asyncio.timeout(_TIMEOUT):
                proof = {"code_verifier": pending.verifier} if _has_pkce(hub) else {}
                token = await hub.token_for_code(code, sync=False, **proof)
        except (TimeoutError, HTTPError) as error:
            self._gateway.log.warning("JupyterHub at %s has not exchanged a code: %r", hub.api_url, error)
            return None
        return str(token)

    def _oauth(self, **options: Any) -> Any:
        from jupyterhub.services.auth import HubOAuth

        hub = HubOAuth(parent=self._gateway, **options)
        name = os.environ.get("JUPYTERHUB_SERVICE_NAME", "")
        if not hub.oauth_client_id and name:
            hub.oauth_client_id = f"service-{name}"
        return hub


def _has_pkce(hub: Any) -> bool:
    """Whether the jupyterhub package can send the verifier (from 6.0); where it cannot, no challenge may be sent."""
    return hasattr(hub, "generate_pkce_code_challenge")
