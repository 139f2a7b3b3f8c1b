"""Serves the page, signs people in and out, and says who they are."""

from __future__ import annotations

import html
import json
import os
from http import HTTPStatus
from typing import ClassVar, cast

from jupyter_server.auth.decorator import allow_unauthenticated, authorized
from jupyter_server.utils import url_path_join
from tornado import web

from sharedkernel._version import __version__
from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.hub import SIGN_IN_SECONDS, HubUsers, PendingSignIn
from sharedkernel.gateway.auth.identity import LIFETIME, TokenOnlyIdentity, TokenUsers
from sharedkernel.gateway.errors import http_status
from sharedkernel.gateway.http.handlers import KERNEL_ROUTE, GatewayHandler
from sharedkernel.gateway.http.request_guard import SIGN_IN_PATH
from sharedkernel.gateway.page.audit_tail import AuditTailHandler
from sharedkernel.gateway.page.figures import FiguresHandler
from sharedkernel.gateway.page.history import HistoryHandler
from sharedkernel.gateway.page.page_handler import (
    PAGE_POLICY,
    STATIC,
    TITLE,
    PageHandler,
    start_page_session,
)
from sharedkernel.gateway.page.room_requests import AskForRoomHandler
from sharedkernel.gateway.page.timeline import TimelineHandler
from sharedkernel.gateway.page.wheel import PATH as WHEEL_PATH
from sharedkernel.gateway.page.wheel import WheelHandler, installation

#: where a sign-in with JupyterHub begins; it ends at ``return`` below
HUB_PATH = "sharedkernel/page/hub"


class FrontPageHandler(PageHandler):
    """``/``: the page."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Serve the page to those who are signed in, and the way to sign in to others."""
        if self.current_user is None:
            self.redirect(url_path_join(self.base_url, SIGN_IN_PATH))
            return
        self.xsrf_token  # noqa: B018  # sets the cookie that the page sends back with what changes something
        self.finish_script('<div id="page"></div>', "<code>sharedkernel top</code> shows the same in a terminal.")


class BaseUrlHandler(PageHandler):
    """The base URL without its last slash."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Send the browser to the page."""
        self.redirect(self.base_url)


class SignInFormHandler(PageHandler):
    """Base of what shows the form for signing in."""

    def show_form(self, problem: str = "", status: HTTPStatus = HTTPStatus.OK, *, why: str = "") -> None:
        """Answer with the form, and with the *problem* that there was, or *why* one has to sign in again."""
        self.set_status(status)
        said = f'<p id="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
        said += f'<p class="sk-Notice" role="status">{html.escape(why)}</p>' if why else ""
        form, hub = html.escape(url_path_join(self.base_url, SIGN_IN_PATH)), ""
        if isinstance(self.identity, HubUsers) and self.identity.sign_in is not None:
            begin = html.escape(url_path_join(self.base_url, HUB_PATH))
            hub = f'<p><a class="sk-Button" href="{begin}">Sign in with JupyterHub</a></p><p>Or with a token:</p>'
        self.finish_page(
            f'<main class="sk-SignIn"><h1>{TITLE}</h1>{said}{hub}<form method="post" action="{form}">'
            f"{self.xsrf_form_html()}"
            '<p><label for="token">Your token</label></p>'
            '<p><input id="token" name="token" type="password" required autofocus autocomplete="current-password"></p>'
            '<p><button type="submit">Sign in</button></p></form>'
            '<p class="sk-SignIn-help">Your admin gives you a token. On a machine that is connected already, '
            "<code>sharedkernel status</code> and <code>top</code> show the same as this page.</p></main>"
        )


class SignInHandler(SignInFormHandler):
    """``/sharedkernel/page/sign-in``: a form for a token."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Show the form, to who was signed in with the reason why they are no more."""
        self.show_form(why=await self._why_signed_out())

    async def _why_signed_out(self) -> str:
        key = self.identity.page_session_key(self.request)
        if not key or self.current_user is not None:
            return ""
        sessions = self.identity.page_sessions
        if sessions.is_earlier(key):
            return "The gateway was restarted after you signed in. Sign in again; sessions go on."
        token = sessions.token_of(key)
        if token is None:
            return f"Your sign-in has ended, as it does {LIFETIME}. Sign in again; sessions go on."
        if self.settings["classes"].has_ended(token):
            return "The class has ended, and your sign-in with it."
        try:
            found = await self.identity.check_token(token, self.request.remote_ip or "")
        except Refused as refusal:
            return f"You were signed out: {refusal}"
        return "" if found else "You were signed out: your token was taken back. Ask your admin for another."

    @allow_unauthenticated
    async def post(self) -> None:
        """Start a page session for a right token."""
        token, address = self.get_body_argument("token", ""), self.request.remote_ip or ""
        try:
            user = await self.identity.check_token(token, address) if token else None
        except Refused as refusal:
            if (retry_after := getattr(refusal, "retry_after", None)) is not None:
                self.set_header("Retry-After", str(max(1, round(retry_after))))
            self.show_form(f"{refusal}", http_status(refusal))
            return
        if user is None:
            sentence = "This gateway does not know that token; ask its admin for one." if token else "Enter your token."
            self.show_form(sentence, HTTPStatus.FORBIDDEN)
            return
        self.settings["audit_log"].record("sign in", user=user.username, address=address)
        start_page_session(self, user.username, token)
        self.redirect(self.base_url, status=HTTPStatus.SEE_OTHER)


class HubSignInHandler(SignInFormHandler):
    """``/sharedkernel/page/hub``: sends the browser to JupyterHub, which sends it back to ``…/return``."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Begin a sign-in."""
        sign_in = self.hub_users.sign_in
        assert sign_in is not None
        pending = PendingSignIn.new()
        self.set_cookie(
            self.pending_cookie,
            pending.cookie,
            path=self.base_url,
            max_age=SIGN_IN_SECONDS,
            httponly=True,
            samesite="Lax",
            secure=self.request.protocol == "https",
        )
        self.redirect(sign_in.address(pending, self.redirect_uri))

    @property
    def hub_users(self) -> HubUsers:
        """The hub's users.

        Raises
        ------
        HTTPError
            404, where nobody signs in with a hub.
        """
        identity = self.identity
        if not isinstance(identity, HubUsers) or identity.sign_in is None:
            raise web.HTTPError(HTTPStatus.NOT_FOUND)
        return identity

    @property
    def pending_cookie(self) -> str:
        """The name of the cookie of a sign-in that has begun."""
        return f"{self.identity.page_cookie(self.request)}-hub"

    @property
    def redirect_uri(self) -> str:
        """The address to which the hub sends the browser back: its configuration names the same one."""
        named = os.environ.get("JUPYTERHUB_OAUTH_CALLBACK_URL", "")
        path = url_path_join(self.base_url, HUB_PATH, "return")
        return named or f"{self.request.protocol}://{self.request.host}{path}"


class HubReturnHandler(HubSignInHandler):
    """``/sharedkernel/page/hub/return``: ends a sign-in with JupyterHub."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Start a page session for who has signed in at the hub."""
        users, address = self.hub_users, self.request.remote_ip or ""
        pending = PendingSignIn.from_cookie(self.get_cookie(self.pending_cookie, ""))
        self.clear_cookie(self.pending_cookie, path=self.base_url)
        if pending is None or not pending.has_state(self.get_query_argument("state", "")):
            sentence = "This sign-in is too old, or began in another browser, or yours keeps no cookies; try again."
            self.show_form(sentence, HTTPStatus.FORBIDDEN)
            return
        if refusal := self.get_query_argument("error", ""):
            self.show_form(f"JupyterHub has not signed you in ({refusal[:200]}).", HTTPStatus.FORBIDDEN)
            return
        try:
            found = await users.user_for_code(self.get_query_argument("code", ""), pending, self.redirect_uri, address)
        except Refused as refused:
            self.show_form(f"{refused}", http_status(refused))
            return
        if found is None:
            sentence = "JupyterHub does not answer, or does not let you use this gateway; try again, or ask its admin."
            self.show_form(sentence, HTTPStatus.FORBIDDEN)
            return
        user, token = found
        self.settings["audit_log"].record("sign in", user=user.username, address=address, by="JupyterHub")
        start_page_session(self, user.username, token)
        self.redirect(self.base_url, status=HTTPStatus.SEE_OTHER)


class SignOutHandler(GatewayHandler):
    """``/sharedkernel/page/sign-out``: ends the page session."""

    actions: ClassVar[dict[str, str]] = {"POST": "sign out"}

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """End it, and have its cookie forgotten."""
        identity = cast("TokenOnlyIdentity", self.identity_provider)
        if key := identity.page_session_key(self.request):
            identity.page_sessions.end(key)
        self.clear_cookie(identity.page_cookie(self.request), path=self.base_url)
        self.finish_empty()


class MeHandler(GatewayHandler):
    """``/sharedkernel/page/me``: whose page it is."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Return the user, how they sign in, and what connects a machine."""
        user = self.current_user
        if user is None:
            self.set_status(HTTPStatus.UNAUTHORIZED)
            self.finish(json.dumps({"message": "you are not signed in.", "reason": "not_signed_in"}))
            return
        install = await installation(self)
        self.finish(
            json.dumps(
                {
                    "user": user.username,
                    "admin": user.admin,
                    "auth": _kind_of(cast("TokenOnlyIdentity", self.identity_provider)),
                    "version": __version__,
                    **install.as_json(),  # it asks for the token
                }
            )
        )


class TokenHandler(GatewayHandler):
    """``/sharedkernel/page/token``: another token of the user, for another machine."""

    actions: ClassVar[dict[str, str]] = {"POST": "make token"}

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Return a new token; those that the user has stay good."""
        identity = cast("TokenOnlyIdentity", self.identity_provider)
        token = identity.make_token(self.current_user.username, made_with=identity.get_token(self) or "")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps({"token": token}))


class StaticHandler(web.StaticFileHandler):
    """``/sharedkernel/page/static/NAME``: what the page runs, which is no secret."""

    def set_extra_headers(self, path: str) -> None:
        """Have the browser take each file for what it says it is, and ask whether it has changed."""
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", PAGE_POLICY)
        self.set_header("Cache-Control", "no-cache")

    @allow_unauthenticated
    async def head(self, path: str) -> None:
        """Return what is known of a file."""
        await super().head(path)

    @allow_unauthenticated
    async def get(self, path: str, include_body: bool = True) -> None:
        """Return a file."""
        await super().get(path, include_body)


def _kind_of(identity: TokenOnlyIdentity) -> str:
    """Return how people sign in: by tokens made here ("token"), by the hub's, or by the only user's."""
    if isinstance(identity, HubUsers):
        return "hub"
    return "token" if isinstance(identity, TokenUsers) else "single"


default_handlers = [
    (r"/", FrontPageHandler),
    (r"", BaseUrlHandler),  # the same where the base URL is "/"
    (rf"/{SIGN_IN_PATH}", SignInHandler),
    (rf"/{HUB_PATH}", HubSignInHandler),
    (rf"/{HUB_PATH}/return", HubReturnHandler),
    (r"/sharedkernel/page/sign-out", SignOutHandler),
    (r"/sharedkernel/page/me", MeHandler),
    (r"/sharedkernel/page/token", TokenHandler),
    (rf"/{WHEEL_PATH}/(.*)", WheelHandler),
    (r"/sharedkernel/page/figures", FiguresHandler),
    (r"/sharedkernel/api/audit", AuditTailHandler),
    (r"/sharedkernel/api/history", HistoryHandler),
    (r"/sharedkernel/api/timeline", TimelineHandler),
    (rf"/sharedkernel/api/sessions/{KERNEL_ROUTE}/ask-for-room", AskForRoomHandler),
    (r"/sharedkernel/page/static/(.*)", StaticHandler, {"path": STATIC}),
]
