"""Users known by JupyterHub: their tokens, their groups, and who of them is an admin.

The gateway is a *service* of the hub. A token is shown to the hub (`HubAuth`, of the jupyterhub package) and the answer
kept for `hub_cache_seconds`: that long a revoked token still works, and that long a hub may be away without anybody
noticing. Then requests are refused until the hub answers: nobody is let in on a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from tornado.web import HTTPError
from traitlets import default

from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.identity import GatewayUser, IdentityUnavailable, TokenOnlyIdentity
from sharedkernel.gateway.auth.tokens import is_user_name

#: seconds that the hub may take to answer
_PATIENCE = 10.0


class HubUsers(TokenOnlyIdentity):
    """Many users, each with the tokens that JupyterHub has given them.

    A user's groups are told to :attr:`on_groups` whenever the hub is asked.
    """

    #: called with a user's name and groups
    on_groups: Callable[[str, Iterable[str]], None]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.on_groups = lambda user, groups: None
        self._cache_seconds = self._gateway.hub_cache_seconds
        self._hub = _make_hub_auth(self._gateway, self._cache_seconds)

    @default("token")
    def _token_default(self) -> str:
        return ""  # there is no token for everybody

    async def identify(self, token: str) -> GatewayUser | None:
        """Return whom the hub takes *token* for, if they may use this service.

        Raises
        ------
        IdentityUnavailable
            When the hub does not answer, and has not lately.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                model = await self._hub.user_for_token(token, use_cache=self._cache_seconds > 0, sync=False)
        except (TimeoutError, HTTPError) as error:
            self.log.warning("JupyterHub at %s could not be asked: %r", self._hub.api_url, error)
            raise IdentityUnavailable(
                "JupyterHub does not answer, so the gateway cannot check your token; your sessions run on, try again "
                "in a minute.",
                retry_after=_PATIENCE,
            ) from None
        return None if model is None else self._admit(model)

    def _admit(self, model: dict[str, Any]) -> GatewayUser | None:
        name = str(model.get("name"))
        if model.get("kind") != "user" or not self._hub.check_scopes(self._hub.access_scopes, model):
            wanted = ", ".join(sorted(self._hub.access_scopes))
            self.log.info("a token of %s %s has no scope %s", model.get("kind"), name, wanted)
            return None
        if not is_user_name(name):
            self.log.warning("%r cannot be a user's name here, so they are not let in", name)
            return None
        self.on_groups(name, model.get("groups") or ())
        return GatewayUser(name, admin=self._is_hub_admin(model) or self.is_admin(name))

    def _is_hub_admin(self, model: dict[str, Any]) -> bool:
        # `admin` is told only to tokens that may read it; the scope makes an admin of the gateway alone.
        return model.get("admin") is True or self._gateway.hub_admin_scope in model["scopes"]


def _make_hub_auth(gateway: Any, cache_seconds: float) -> Any:
    """Return the jupyterhub package's client, from its own settings (``c.HubAuth`` and ``JUPYTERHUB_…``).

    Raises
    ------
    ConfigError
        When the package is not there, or it is not said which service this is.
    """
    try:
        from jupyterhub.services.auth import HubAuth
    except ImportError:
        raise ConfigError(
            f"identity 'jupyterhub' needs the package jupyterhub; run {install_hint('jupyterhub')}."
        ) from None
    hub = HubAuth(parent=gateway, cache_max_age=cache_seconds)
    if not hub.access_scopes:
        raise ConfigError(
            "no scope says whom JupyterHub lets use this gateway; set JUPYTERHUB_SERVICE_NAME to the service's name, "
            "or c.HubAuth.access_scopes."
        )
    return hub
