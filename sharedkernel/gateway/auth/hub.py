"""Users of a JupyterHub: their tokens, their groups, which of them are admins, and how they sign in on the page.

The gateway is a *service* of the hub. It sends each token to the hub (`HubAuth`, of the jupyterhub package) and keeps
the answer for `hub_cache_seconds`: for that time a revoked token still works, and an outage of the hub goes unnoticed.
After that, requests are refused until the hub answers.

Signing in is OAuth 2, with PKCE where the jupyterhub package has it. The browser is sent to the hub, which sends it
back with a code; the gateway exchanges the code for a token of the user, with its own token as the secret. From then on
this token is treated as one that was typed: it stays in the page session, and is checked with each request. What the
browser has to bring back is kept in its own cookie alone, so that whoever begins any number of sign-ins fills nothing
here.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from functools import partial
from typing import Any
from urllib.parse import urlencode

from tornado.web import HTTPError
from traitlets import default
from traitlets.config import Config

from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.identity import GatewayUser, IdentityUnavailable, TokenOnlyIdentity
from sharedkernel.jupyter.names import is_user_name

#: seconds that the hub may take to answer, and that somebody may take to sign in there
_TIMEOUT, SIGN_IN_SECONDS = 10.0, 600
#: variable with the address of the hub's API
_URL_VARIABLE = "JUPYTERHUB_API_URL"


def state_of(verifier: str) -> str:
    """Return what comes back from the hub, and shows that the browser with this *verifier* has begun the sign-in."""
    return hashlib.sha256(f"state:{verifier}".encode()).hexdigest()


def _challenge(verifier: str) -> str:
    """Return what the hub gets before it sees the *verifier* (RFC 7636)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _has_pkce(hub: Any) -> bool:
    """Whether the jupyterhub package can send the verifier (from 6.0); where it cannot, no challenge may be sent."""
    return hasattr(hub, "generate_pkce_code_challenge")


class HubUsers(TokenOnlyIdentity):
    """Many users, each with tokens of JupyterHub; the gateway gets their groups at each answer of the hub."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cache_seconds = self._gateway.hub_cache_seconds
        self._hub = make_hub_auth(parent=self._gateway, cache_max_age=self._cache_seconds)
        self._hub_url = self._url_for_browsers().rstrip("/")
        oauth = self._oauth()
        #: whether people can sign in on the page without typing a token: the hub's address, which service this is and
        #: its secret are known
        self.can_sign_in = bool(self._hub_url and oauth.api_token and oauth.oauth_client_id)

    @default("token")
    def _token_default(self) -> str:
        return ""  # there is no common token

    @property
    def public_url(self) -> str:
        """The hub's address for browsers, without a slash at its end; "" if it is not known."""
        host = self._hub.hub_host
        named = os.environ.get("JUPYTERHUB_PUBLIC_HUB_URL", "") or (host and f"{host}{self._hub.hub_prefix}")
        return str(named).rstrip("/")

    def _url_for_browsers(self) -> str:
        """Return where browsers find the hub; "" if that is not known."""
        if self.public_url:
            return self.public_url
        is_behind_hub = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "") == self._gateway.base_url != "/"
        return str(self._hub.hub_prefix) if is_behind_hub else ""

    def sign_in_address(self, verifier: str, redirect_uri: str) -> str:
        """Return where to send a browser.

        Parameters
        ----------
        verifier
            A secret of the sign-in that begins, which shows the hub that the code is used by who asked for it.
        redirect_uri
            Address at which the hub sends it back.
        """
        oauth = self._oauth()
        query = {"client_id": oauth.oauth_client_id, "redirect_uri": redirect_uri, "state": state_of(verifier)}
        if _has_pkce(oauth):
            query |= {"code_challenge": _challenge(verifier), "code_challenge_method": "S256"}
        return f"{self._hub_url}/api/oauth2/authorize?response_type=code&{urlencode(query)}"

    async def user_for_code(
        self, code: str, verifier: str, redirect_uri: str, address: str
    ) -> tuple[GatewayUser, str] | None:
        """Return who has signed in at the hub, and their token; None for a wrong code, or if they may not use this.

        Parameters
        ----------
        code, verifier, redirect_uri
            Of the sign-in that ends.
        address
            IP address of the browser; wrong codes count as wrong tokens do.

        Raises
        ------
        Refused
            When the hub cannot be asked, or too many wrong codes came from the address.
        """
        exchange = partial(self._token_for, verifier=verifier, redirect_uri=redirect_uri)
        token = await self.check_secret(code, address, exchange, "sign-in code")
        if token is None:
            return None
        user = await self.check_token(token, address)
        return None if user is None else (user, token)

    async def _token_for(self, code: str, verifier: str, redirect_uri: str) -> str | None:
        """Return the user's token for a *code* that the hub has sent; None where the hub does not accept it."""
        oauth = self._oauth(oauth_redirect_uri=redirect_uri)
        try:
            async with asyncio.timeout(_TIMEOUT):
                proof = {"code_verifier": verifier} if _has_pkce(oauth) else {}
                token = await oauth.token_for_code(code, sync=False, **proof)
        except (TimeoutError, HTTPError) as error:
            self.log.warning("JupyterHub at %s has not exchanged a code: %r", oauth.api_url, error)
            return None
        return str(token)

    def _oauth(self, **options: Any) -> Any:
        from jupyterhub.services.auth import HubOAuth

        oauth = HubOAuth(parent=self._gateway, **options)
        name = os.environ.get("JUPYTERHUB_SERVICE_NAME", "")
        if not oauth.oauth_client_id and name:
            oauth.oauth_client_id = f"service-{name}"
        return oauth

    async def identify(self, token: str) -> GatewayUser | None:
        """Return the user of *token* according to the hub, if they may use this service.

        Raises
        ------
        IdentityUnavailable
            When the hub does not answer, and no earlier answer is kept.
        """
        try:
            async with asyncio.timeout(_TIMEOUT):
                model = await self._hub.user_for_token(token, use_cache=self._cache_seconds > 0, sync=False)
        except (TimeoutError, HTTPError) as error:
            self.log.warning("JupyterHub at %s could not be asked: %r", self._hub.api_url, error)
            raise IdentityUnavailable(
                "JupyterHub does not answer, so the gateway cannot check your token; your sessions run on, try again "
                "in a minute.",
                retry_after=_TIMEOUT,
            ) from None
        return None if model is None else self._admit(model)

    def _admit(self, model: dict[str, Any]) -> GatewayUser | None:
        name = str(model.get("name"))
        if model.get("kind") != "user" or not self._hub.check_scopes(self._hub.access_scopes, model):
            wanted = ", ".join(sorted(self._hub.access_scopes))
            self.log.info("a token of %s %s has no scope %s", model.get("kind"), name, wanted)
            return None
        if not is_user_name(name):
            self.log.warning("%r cannot be a user's name here, so they are refused", name)
            return None
        self._gateway.record_groups(name, model.get("groups") or ())
        # `admin` is there only for tokens that may read it; the scope makes an admin of this gateway alone.
        is_hub_admin = model.get("admin") is True or self._gateway.hub_admin_scope in model["scopes"]
        return GatewayUser(name, admin=is_hub_admin or self.is_admin(name))


def make_hub_auth(**options: Any) -> Any:
    """Return the jupyterhub package's client, from its own settings (``c.HubAuth`` and ``JUPYTERHUB_…``).

    Parameters
    ----------
    options
        Of the client: ``parent`` or ``config`` have its settings.

    Raises
    ------
    ConfigError
        When the package is not installed, or does not know which service this is.
    """
    try:
        from jupyterhub.services.auth import HubAuth
    except ImportError:
        raise ConfigError(
            f"identity 'jupyterhub' needs the package jupyterhub; run {install_hint('jupyterhub')}."
        ) from None
    hub = HubAuth(**options)
    if not hub.access_scopes:
        raise ConfigError(
            "no scope says whom JupyterHub lets use this gateway; set JUPYTERHUB_SERVICE_NAME to the service's name, "
            "or c.HubAuth.access_scopes."
        )
    return hub


def presumed_hub(config: Config) -> str | None:
    """Return a sentence about where the hub is looked for if nothing says where it is; None if something does.

    Parameters
    ----------
    config
        Of the files and the command line.
    """
    if os.environ.get(_URL_VARIABLE) or "api_url" in config.get("HubAuth", {}):
        return None
    return (
        f"{_URL_VARIABLE} is not set, so JupyterHub is asked at {make_hub_auth(config=config).api_url}; if it is not "
        "on this machine, set the variable where the gateway starts, or c.HubAuth.api_url."
    )
