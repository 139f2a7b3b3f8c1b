"""Who is asking, and what is theirs.

The user comes from the token alone. No cookie is set or read: a token that is taken away stops working with the next
request, and a page on another site cannot act in anybody's name. Whose a kernel is, the kernel manager knows; this
module turns that into yes or "there is no such kernel" for every route. Ids are no secrets, since the status lists
everybody's sessions; they open nothing.
"""

from __future__ import annotations

import getpass
import hmac
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from jupyter_server.auth import Authorizer, IdentityProvider, User
from jupyter_server.base.call_context import CallContext
from jupyter_server.base.handlers import JupyterHandler
from tornado.web import RequestHandler
from traitlets import Unicode, default

from sharedkernel.errors import ConfigError, Refused
from sharedkernel.gateway.auth.rate_limit import LoginLimit, TooManyAtOnce, TooManyFailures
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.http.errors import finish_refused

#: seconds after which a client should ask again when tokens cannot be read
_TOKENS_RETRY = 10.0


class IdentityUnavailable(Refused):
    """Who knows the users cannot be asked."""

    reason = "identity_unavailable"


@dataclass
class GatewayUser(User):
    """A user of the gateway; `username` is who owns sessions and has quotas."""

    #: sees everybody's sessions, may act on them and change quotas
    admin: bool = False

    def may_see(self, owner: str) -> bool:
        """Whether what belongs to *owner* exists for this user."""
        return self.admin or self.username == owner


def requesting_user() -> GatewayUser | None:
    """Return whose request runs right now; None outside of requests (a timer, the executor's news)."""
    handler = CallContext.get(CallContext.JUPYTER_HANDLER)
    user = None if handler is None else handler.current_user
    return user if isinstance(user, GatewayUser) else None


class TokenOnlyIdentity(IdentityProvider):
    """Base of the gateway's identities: one token, one user, nothing else."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._limit = LoginLimit(self._gateway.max_failed_logins, self._gateway.failed_login_seconds)

    @property
    def _gateway(self) -> Any:
        """The application: users are set there, and may be set anew."""
        return self.parent

    @property
    def login_available(self) -> bool:
        """There are no login pages: clients bring their token."""
        return False

    @property
    def logout_available(self) -> bool:
        """Nobody is logged in, so nobody can log out."""
        return False

    async def _get_user(self, handler: RequestHandler) -> User | None:
        token = self.get_token(handler)
        if not token:
            return None
        address = handler.request.remote_ip or ""
        try:
            async with self._limit.turn(address, token):
                is_new = self._limit.attempt(address, token, now=time.monotonic())
                user = await self.identify(token)
        except IdentityUnavailable as refusal:
            self._limit.withdraw(address, token)
            self._refuse(handler, refusal)
        except (TooManyFailures, TooManyAtOnce) as refusal:
            self._refuse(handler, refusal)
        if user is None:
            self._limit.failed(token)
            if is_new:
                handler.settings["audit_log"].record("refuse token", user=None, address=address)
        else:
            self._limit.succeeded(address, token)
            # jupyter_server reads this: such a request needs no protection against other sites' forms.
            handler._token_authenticated = True  # type: ignore[attr-defined]
        return user

    def _refuse(self, handler: RequestHandler, refusal: Refused) -> NoReturn:
        self.log.info("refused %s %s (%s)", handler.request.method, handler.request.path, refusal.reason)
        finish_refused(handler, refusal)

    async def identify(self, token: str) -> GatewayUser | None:
        """Return whose *token* this is; None when it is nobody's.

        Raises
        ------
        IdentityUnavailable
            When that cannot be known now.
        """
        name = self.name_for(token)
        return None if name is None else GatewayUser(name, admin=self.is_admin(name))

    def name_for(self, token: str) -> str | None:
        """Return the name of the user whose *token* this is, for identities that know at once; None: nobody's.

        Raises
        ------
        IdentityUnavailable
            When that cannot be known now.
        """
        raise NotImplementedError

    def is_admin(self, name: str) -> bool:
        """Whether user *name* is an admin."""
        return name in self._gateway.admins


class SingleUser(TokenOnlyIdentity):
    """One user, an admin, with the one token of Jupyter's server (generated, or from its usual settings)."""

    user_name = Unicode(help="The one user's name; default: the operating system's.")

    @default("user_name")
    def _default_user_name(self) -> str:
        return getpass.getuser()

    def name_for(self, token: str) -> str | None:
        """Return the user's name for the server's token."""
        return self.user_name if hmac.compare_digest(token.encode(), self.token.encode()) else None

    def is_admin(self, name: str) -> bool:
        """Return True: there is nobody else."""
        return True

    def validate_security(self, app: Any, ssl_options: dict[str, Any] | None = None) -> None:
        """Refuse to serve without a token.

        Raises
        ------
        ConfigError
            When the token is set to nothing.
        """
        if not self.token:
            raise ConfigError(
                "an empty token would let anybody in; remove it from the configuration, or set identity to 'tokens'."
            )


class TokenUsers(TokenOnlyIdentity):
    """Many users, each with tokens of their own in a :class:`~sharedkernel.gateway.auth.tokens.TokenFile`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._file = TokenFile(Path(self._gateway.tokens_file))
        self._file.tokens()

    @default("token")
    def _token_default(self) -> str:
        return ""  # there is no token for everybody

    def name_for(self, token: str) -> str | None:
        """Return whose token the file says this is.

        Raises
        ------
        IdentityUnavailable
            When the file cannot be read: what it does not say is no guess at anybody's token.
        """
        try:
            return self._file.user_for(token)
        except ConfigError as error:
            self.log.error("nobody can be let in: %s", error)
            raise IdentityUnavailable(
                "the gateway cannot read its users' tokens, so it cannot check yours; your sessions run on, tell its "
                "admin.",
                retry_after=_TOKENS_RETRY,
            ) from None


class OwnerAuthorizer(Authorizer):
    """Lets users act on their own kernels and sessions, admins on all."""

    def is_authorized(self, handler: JupyterHandler, user: User, action: str, resource: str) -> bool:
        """Return True, unless the request names a kernel of somebody else, in its route or its body.

        Notebook sessions (``/api/sessions``) are looked after by their manager, which knows whose each is.

        Raises
        ------
        HTTPError
            404, the same as for a kernel that does not exist.
        """
        if not isinstance(user, GatewayUser):
            return False
        named = handler.path_kwargs.get("kernel_id")
        if resource == "sessions" and handler.request.method in ("POST", "PATCH"):
            body = handler.get_json_body()
            kernel = body.get("kernel") if isinstance(body, dict) else None
            named = kernel.get("id") if isinstance(kernel, dict) else None
        if named is not None:
            handler.kernel_manager.check_visible(named, user)  # type: ignore[attr-defined]
        return True
