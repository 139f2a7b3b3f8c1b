"""Identity: which user a request comes from.

The user follows from the token alone, so a removed token stops working with the next request. It comes in a header;
only the gateway's own page, and what it asks for, may name it by the key of a page session in a cookie. Such requests
are held to Jupyter's protection against other sites' pages (XSRF), and open no websocket. The token itself stays here,
in memory: one that is taken back ends its page sessions at once, and a restart of the gateway ends all of them.
`jupyter_defaults.py` says which kernels a request may name.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime
import getpass
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jupyter_server.auth import IdentityProvider, User
from jupyter_server.base.call_context import CallContext
from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler
from traitlets import Unicode, default

from sharedkernel.errors import ConfigError, Refused
from sharedkernel.gateway.auth.rate_limit import LoginLimit
from sharedkernel.gateway.auth.tickets import TICKET, Purpose
from sharedkernel.gateway.auth.tokens import TokenExpired, TokenFile, TokenUse
from sharedkernel.gateway.errors import finish_refused

T = TypeVar("T")

#: seconds after which a client should ask again when tokens cannot be read
_TOKENS_RETRY = 10.0
#: most tokens that a user can have by making them on the page
_MOST_TOKENS = 20
#: what a page session may be used for: the page, what it shows, and what can be done there with a kernel
_PAGE_PATHS = re.compile(r"(?:|sharedkernel/(?!files/).*|api/kernels/[^/]+(?:/interrupt)?)")
#: where a request has the check of its token: that is made and counted once, and goes with the request
_CHECKED = "_sharedkernel_user"
#: characters below which a token can be guessed by trying
_SHORT_TOKEN = 16
#: seconds without a request after which a page session ends, and seconds after which it ends in any case
_IDLE_SECONDS, _MOST_SECONDS = 12 * 3600.0, 7 * 86_400.0
#: most page sessions of a user, and in all; beyond, the one that was used least recently ends
_MOST_OF_USER, _MOST = 20, 5000
#: when page sessions end, in words
LIFETIME = (
    f"after {_IDLE_SECONDS / 3600:.0f} hours without use, after {_MOST_SECONDS / 86_400:.0f} days, "
    f"or at your {_MOST_OF_USER}th newer one"
)


class IdentityUnavailable(Refused):
    """The users' tokens cannot be checked now."""

    reason = "identity_unavailable"


@dataclass
class GatewayUser(User):
    """A user of the gateway; `username` is the owner of sessions and the name in quotas."""

    #: whether they see all sessions, may act on them and change quotas
    admin: bool = False
    #: whether a front gateway has checked their token, and checks it again while a websocket is open
    is_vouched_for: bool = False

    def may_see(self, owner: str) -> bool:
        """Whether this user may see and use sessions of *owner*."""
        return self.admin or self.username == owner


def requesting_user() -> GatewayUser | None:
    """Return the user of the current request; None outside of requests (a timer, a report of an executor)."""
    handler = CallContext.get(CallContext.JUPYTER_HANDLER)
    user = None if handler is None else handler.current_user
    return user if isinstance(user, GatewayUser) else None


class TokenOnlyIdentity(IdentityProvider):
    """Base of the gateway's identities: a token identifies a user, and nothing else does."""

    #: for Jupyter's server: there are no such pages, clients send their token
    login_available = logout_available = False
    #: the users' tokens, where they are kept here
    token_file: TokenFile | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: who is signed in on the gateway's page
        self.page_sessions = PageSessions()
        #: ids of tokens that came in a header lately: from machines, not from the page. The classes empty it
        self.connected_tokens: set[str] = set()
        self._limit = LoginLimit(self._gateway.max_failed_logins, self._gateway.failed_login_seconds)

    @property
    def _gateway(self) -> Any:
        return self.parent

    def get_token(self, handler: RequestHandler) -> str | None:
        """Return the token in the request's headers, where the request guard has moved one from the address.

        Without one, that of the page session whose cookie came, if the request is one of the page's.
        """
        return self._token_of(handler.request) or self._page_token_of(handler.request)

    def _token_of(self, request: HTTPServerRequest) -> str | None:
        found = self.auth_header_pat.match(request.headers.get("Authorization", ""))
        return None if found is None else found.group(2)

    def _page_token_of(self, request: HTTPServerRequest) -> str | None:
        path = request.path.removeprefix(self._gateway.base_url)
        if "Upgrade" in request.headers or not _PAGE_PATHS.fullmatch(path):
            return None
        key = self.page_session_key(request)
        return None if key is None else self.page_sessions.token_of(key)

    @staticmethod
    def page_cookie(request: HTTPServerRequest) -> str:
        """Return the cookie's name for the address of *request*: a browser sends cookies to all ports of a host."""
        return "sharedkernel-page-" + re.sub(r"[^A-Za-z0-9]+", "-", request.host)

    def page_session_key(self, request: HTTPServerRequest) -> str | None:
        """Return the key of a page session in the cookies of *request*."""
        found = request.cookies.get(self.page_cookie(request))
        return None if found is None else found.value

    async def find_user(self, request: HTTPServerRequest) -> GatewayUser | None:
        """Return the user of a request, whose body need not have come; None without a right token.

        Raises
        ------
        Refused
            When the token cannot be checked now, or too many wrong ones came from its address.
        """
        checked: asyncio.Future[GatewayUser | None] | None = getattr(request, _CHECKED, None)
        if checked is None:
            # In an empty context: the request's leads to its handler, and so back to the request.
            checked = asyncio.create_task(self._check_token(request), context=contextvars.Context())
            setattr(request, _CHECKED, checked)
        return await checked

    async def _check_token(self, request: HTTPServerRequest) -> GatewayUser | None:
        sent = self._token_of(request)
        token = sent or self._page_token_of(request)
        user = await self.check_token(token, request.remote_ip or "") if token else None
        if user is not None and sent and not user.is_vouched_for:
            self.connected_tokens.add(sent.rpartition("-")[0])
        return user

    async def check_token(self, token: str, address: str) -> GatewayUser | None:
        """Return the user of *token*; None for a wrong one, which is counted.

        Parameters
        ----------
        token
            What a client sent.
        address
            IP address of the client.

        Raises
        ------
        Refused
            When the token cannot be checked now, or too many wrong ones came from the address.
        """
        if token.startswith(TICKET) and (key := self._gateway.ticket_key) is not None:
            # Not counted: nobody guesses one, and all of a front's users have its address.
            ticket = key.read(token, purpose=Purpose.REQUEST, now=time.time())
            return None if ticket is None else GatewayUser(ticket.name, admin=ticket.admin, is_vouched_for=True)
        user = await self.check_secret(token, address, self.identify, "token")
        if user is not None:
            self._limit.succeeded(token)
        return user

    async def check_secret(
        self, secret: str, address: str, check: Callable[[str], Awaitable[T | None]], what: str
    ) -> T | None:
        """Return what *check* returns for a token or a code; a wrong one is counted.

        Parameters
        ----------
        secret
            What a client sent.
        address
            IP address of the client.
        check
            Returns None for a wrong one.
        what
            What the audit log calls it.

        Raises
        ------
        Refused
            When too many wrong ones came from the address, or *check* refuses.
        """
        async with self._limit.turn(address, secret, now=time.monotonic()):
            found = await check(secret)
        if found is None and self._limit.failed(address, secret, now=time.monotonic()):
            self._gateway.deployment.audit_log.record(f"refuse {what}", user=None, address=address)
        return found

    def close(self) -> None:
        """Keep what is to be kept at the gateway's end."""

    async def _get_user(self, handler: RequestHandler) -> User | None:
        # Jupyter asks this before each request, a websocket's too.
        try:
            user = await self.find_user(handler.request)
        except Refused as refusal:
            if isinstance(refusal, TokenExpired) and not self._token_of(handler.request):
                return None  # signed out of the page
            self.log.info("refused %s %s (%s)", handler.request.method, handler.request.path, refusal.reason)
            finish_refused(handler, refusal)
        if user is not None and self._token_of(handler.request):
            # For jupyter_server: such a request needs no protection against other sites' forms.
            handler._token_authenticated = True  # type: ignore[attr-defined]
        return user

    async def identify(self, token: str) -> GatewayUser | None:
        """Return the user of *token*; None for an unknown token.

        Raises
        ------
        IdentityUnavailable
            When the token cannot be checked now.
        """
        name = self.name_for(token)
        return None if name is None else GatewayUser(name, admin=self.is_admin(name))

    def name_for(self, token: str) -> str | None:
        """Return the name of *token*'s user, for identities that know it at once; None for an unknown token.

        Raises
        ------
        IdentityUnavailable
            When the token cannot be checked now.
        """
        raise NotImplementedError

    def is_admin(self, name: str) -> bool:
        """Whether user *name* is an admin."""
        return name in self._gateway.admins

    def token_owners(self) -> set[str] | None:
        """Return the names of all users with a token in the file; None where there is none, or it cannot be read."""
        with contextlib.suppress(ConfigError):
            return None if self.token_file is None else self.token_file.owners()
        return None

    def make_token(
        self, user: str, *, made_with: str = "", expires: datetime.datetime | None = None, group: str | None = None
    ) -> str:
        """Return another token of *user*, for identities whose tokens are made here.

        Parameters
        ----------
        user
            Whose it is.
        made_with
            The token that its user signed in with; where that ends with a class, the new one does, too.
        expires
            When it ends; None: when the last of the user's tokens does.
        group
            The class with which it ends.

        Raises
        ------
        Refused
            When no token can be made.
        """
        raise Refused(f"tokens of {user} are not made by this gateway.", reason="not_allowed")


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
        """Return True: there is no other user."""
        return True

    def validate_security(self, app: Any, ssl_options: dict[str, Any] | None = None) -> None:
        """Refuse to serve without a token, and warn of a short one.

        Raises
        ------
        ConfigError
            When the token is empty.
        """
        if not self.token:
            raise ConfigError(
                "an empty token would let anybody in; remove it from the configuration, or set identity to 'tokens'."
            )
        if len(self.token) < _SHORT_TOKEN:
            self.log.warning(
                "the token has %d characters and can be guessed; use at least %d, or remove it from the configuration.",
                len(self.token),
                _SHORT_TOKEN,
            )


class TokenUsers(TokenOnlyIdentity):
    """Many users, each with tokens of their own in a :class:`~sharedkernel.gateway.auth.tokens.TokenFile`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._file = self.token_file = TokenFile(Path(self._gateway.tokens_file))
        self._file.tokens()
        self._use = TokenUse(self._file.path, self._file.tokens)

    @default("token")
    def _token_default(self) -> str:
        return ""  # there is no common token

    def name_for(self, token: str) -> str | None:
        """Return the name of *token*'s user in the file.

        Raises
        ------
        TokenExpired
            When it has ended; it does not count as a wrong one.
        IdentityUnavailable
            When the file cannot be read; the token does not count as a wrong one.
        """
        try:
            user = self._file.user_for(token)
        except ConfigError as error:
            self.log.error("no token can be checked: %s", error)
            raise IdentityUnavailable(
                "the gateway cannot read its users' tokens, so it cannot check yours; your sessions run on, tell its "
                "admin.",
                retry_after=_TOKENS_RETRY,
            ) from None
        if user is not None:
            self._use.record(token.split("-")[1])
        return user

    def close(self) -> None:
        """Keep when tokens were last used."""
        self._use.store()

    def make_token(
        self, user: str, *, made_with: str = "", expires: datetime.datetime | None = None, group: str | None = None
    ) -> str:
        """Return another token of *user*, unless they have many.

        Parameters
        ----------
        user
            Whose it is.
        made_with
            The token that its user signed in with; where that ends with a class, the new one does, too.
        expires
            When it ends; None: when the last of the user's tokens does.
        group
            The class with which it ends.

        Raises
        ------
        Refused
            When they have, or the file of tokens cannot be written.
        """
        try:
            known = self._file.tokens()
            origin = known.get(made_with.partition("-")[2].partition("-")[0])
            if origin is not None and origin.group is not None:
                expires, group = origin.expires, origin.group
            tokens = [token for token in known.values() if token.user == user and not token.has_expired]
            if len(tokens) >= _MOST_TOKENS:
                raise Refused(
                    f"{user} has {len(tokens)} tokens, which is the most that can be made here; an admin removes those "
                    "that are not used, with `sharedkernel token remove`.",
                    reason="not_allowed",
                )
            ends = [token.expires for token in tokens]
            # whose tokens all expire cannot make one that does not
            until = None if None in ends else max((end for end in ends if end is not None), default=None)
            return self._file.add(user, expires=expires or until, group=group)
        except ConfigError as error:
            self.log.error("no token can be made: %s", error)
            raise IdentityUnavailable(
                "the gateway cannot write its users' tokens; tell its admin.", retry_after=_TOKENS_RETRY
            ) from None


@dataclass(slots=True)
class _PageSession:
    user: str
    token: str
    began: float
    used: float


class PageSessions:
    """The sessions by the key in their cookie, the least recently used first."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _PageSession] = OrderedDict()
        #: begins this gateway's keys, so that those of an earlier one are known as such
        self._prefix = f"{secrets.token_hex(4)}."

    def start(self, user: str, token: str) -> str:
        """Return the key of a new session of *user*, who has sent *token*."""
        now = time.monotonic()
        own = [key for key, session in self._sessions.items() if session.user == user]
        for key in own[: max(0, len(own) + 1 - _MOST_OF_USER)]:
            del self._sessions[key]
        while len(self._sessions) >= _MOST:
            self._sessions.popitem(last=False)
        key = self._prefix + secrets.token_urlsafe(32)
        self._sessions[key] = _PageSession(user, token, now, now)
        return key

    def token_of(self, key: str) -> str | None:
        """Return the token for which *key* stands; None for a session that has ended."""
        session, now = self._sessions.get(key), time.monotonic()
        if session is None:
            return None
        if now - session.used > _IDLE_SECONDS or now - session.began > _MOST_SECONDS:
            del self._sessions[key]
            return None
        session.used = now
        self._sessions.move_to_end(key)
        return session.token

    def is_earlier(self, key: str) -> bool:
        """Whether an earlier gateway has made *key*."""
        return not key.startswith(self._prefix)

    def end(self, key: str) -> None:
        """End a session, if there is one with *key*."""
        self._sessions.pop(key, None)
