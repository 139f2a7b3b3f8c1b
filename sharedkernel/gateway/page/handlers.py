"""The gateway's page: its frame, sign-in and sign-out, who somebody is, and live figures as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import html
import json
import os
import secrets
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, cast

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from sharedkernel._version import __version__
from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.audit import AuditedHandler
from sharedkernel.gateway.auth.hub import SIGN_IN_SECONDS, HubUsers, state_of
from sharedkernel.gateway.auth.identity import LIFETIME, GatewayUser, TokenOnlyIdentity, TokenUsers
from sharedkernel.gateway.errors import ErrorResponseMixin, set_refused
from sharedkernel.gateway.http.handlers import KERNEL_ROUTE, GatewayHandler, for_users
from sharedkernel.gateway.http.server import SIGN_IN_PATH
from sharedkernel.gateway.http.status_feed import FeedText
from sharedkernel.gateway.page.audit_tail import AuditTailHandler
from sharedkernel.gateway.page.history import HistoryHandler, TimelineHandler
from sharedkernel.gateway.page.room_requests import AskForRoomHandler
from sharedkernel.gateway.page.wheel import PATH as WHEEL_PATH
from sharedkernel.gateway.page.wheel import WheelHandler, installation

#: what the browser runs and how it looks, built from `labextension/src/page/`
STATIC = Path(__file__).parent / "static"
_SCRIPT, _STYLE = "page.js", "page.css"
#: the page loads nothing from elsewhere, runs nothing that is written into it, and is shown in no other page
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
TITLE = "Shared GPU"
#: seconds without a document after which an event shows that the connection lives; the page waits for three
_HEARTBEAT = 5.0
#: seconds that a browser may take to read a document
_PATIENCE = 60.0
#: where a sign-in with JupyterHub begins; it ends at ``return`` below
HUB_PATH = "sharedkernel/page/hub"


class PageHandler(ErrorResponseMixin, AuditedHandler, JupyterHandler):
    """Base of what people see."""

    auth_resource = "sharedkernel"

    @property
    def content_security_policy(self) -> str:
        """The policy on what the browser may load and run."""
        return PAGE_POLICY

    def set_default_headers(self) -> None:
        """Have nothing stored, and no address told to other sites."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "same-origin")  # without any, the form has no origin either

    @property
    def identity(self) -> TokenOnlyIdentity:
        """The identity provider."""
        return cast("TokenOnlyIdentity", self.identity_provider)

    def finish_page(self, body: str, *, script: str = "") -> None:
        """Answer with a page.

        Parameters
        ----------
        body
            HTML.
        script
            Name of the script that it runs; empty: none.
        """
        static = html.escape(url_path_join(self.base_url, "sharedkernel/page/static"))
        loaded = f'<script src="{static}/{script}"></script>' if script else ""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta name="color-scheme" content="light dark"><title>{TITLE}</title>'
            f'<link rel="stylesheet" href="{static}/{_STYLE}"></head><body>{body}{loaded}</body></html>\n'
        )

    def finish_script(self, body: str, instead: str = "") -> None:
        """Answer with a page that its script fills in.

        Parameters
        ----------
        body
            HTML.
        instead
            HTML that says what to do where no script runs.
        """
        if not (STATIC / _SCRIPT).is_file():
            self.finish_page(
                f'<main class="sk-SignIn"><h1>{TITLE}</h1><p>The page was not built: in a checkout, run '
                f"<code>make labextension</code>. {instead}</p></main>"
            )
            return
        self.finish_page(f"{body}<noscript>This page needs JavaScript. {instead}</noscript>", script=_SCRIPT)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with a page of one sentence."""
        error = kwargs.get("exc_info", (None, None))[1]
        sentence = ""
        if isinstance(error, Refused):
            set_refused(self, error)
            sentence = str(error)
        if isinstance(error, web.HTTPError) and "_xsrf" in (error.log_message or ""):
            sentence = "This form is too old, or your browser keeps no cookies; go back, load the page again and retry."
        reason = sentence or f"{status_code}: {self._reason}."
        self.finish_page(f'<main class="sk-SignIn"><h1>{TITLE}</h1><p>{html.escape(reason)}</p></main>')


def start_page_session(handler: JupyterHandler, user: str, token: str) -> None:
    """Sign *user* in on the page with the answer of *handler*; *token* is theirs."""
    identity = cast("TokenOnlyIdentity", handler.identity_provider)
    set_secret_cookie(handler, identity.page_cookie(handler.request), identity.page_sessions.start(user, token))


def set_secret_cookie(handler: JupyterHandler, name: str, value: str, **options: Any) -> None:
    """Set a cookie that no script reads, with other *options* of tornado's."""
    options = {"path": handler.base_url, "samesite": "Lax", **options}
    handler.set_cookie(name, value, httponly=True, secure=handler.request.protocol == "https", **options)


class FiguresHandler(GatewayHandler):
    """``/sharedkernel/page/figures``: sends the status document, as its user may see it, whenever it has changed.

    While no executor answers, it sends ``{"message", "reason", "since"}`` instead. A browser that reads slowly misses
    documents.
    """

    _track_activity = False

    def initialize(self) -> None:
        """Prepare to be shown documents."""
        self._document: FeedText | None = None
        self._changed = asyncio.Event()
        self._is_closed = False

    @for_users
    async def get(self) -> None:
        """Send documents until the browser is gone or its user's token is no longer good."""
        feed = self.settings["status_feed"]
        with self.settings["open_websockets"].place_for(self):
            self.set_header("Content-Type", "text/event-stream")
            self.set_header("Cache-Control", "no-store")
            self.set_header("X-Accel-Buffering", "no")  # nginx would collect what it passes on
            feed.add(self)
            try:
                # A closed or stuck connection: the browser connects again.
                with contextlib.suppress(StreamClosedError, TimeoutError):
                    await self._send_all()
            finally:
                feed.remove(self)

    async def _send_all(self) -> None:
        user, last = self.current_user, b""
        assert isinstance(user, GatewayUser)
        while not self._is_closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _HEARTBEAT)
            if self._changed.is_set():
                self._changed.clear()
                text = b"" if self._document is None else self._document.text_for(user)
                if text == last:
                    continue
                last = text
                self.write(b"data: " + text + b"\n\n")
            else:
                self.write(b"event: alive\ndata: 1\n\n")
            await asyncio.wait_for(self.flush(), _PATIENCE)

    def show(self, document: FeedText) -> None:
        """Send *document* next."""
        self._document = document
        self._changed.set()

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """End the stream; *code* and *reason* are for websockets."""
        self._is_closed = True
        self._changed.set()

    def on_connection_close(self) -> None:
        """Stop: the browser is gone."""
        super().on_connection_close()
        self.close()


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

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the form, and why one was not signed in with it."""
        error = kwargs.get("exc_info", (None, None))[1]
        if isinstance(error, Refused):
            set_refused(self, error)
            self.show_form(str(error))
        else:
            super().write_error(status_code, **kwargs)

    def show_form(self, problem: str = "", *, why: str = "") -> None:
        """Answer with the form, and with the *problem* that there was, or *why* one has to sign in again."""
        said = f'<p id="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
        said += f'<p class="sk-Notice" role="status">{html.escape(why)}</p>' if why else ""
        form, hub = html.escape(url_path_join(self.base_url, SIGN_IN_PATH)), ""
        if isinstance(self.identity, HubUsers) and self.identity.can_sign_in:
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
        user = await self.identity.check_token(token, address) if token else None
        if user is None:
            sentence = "This gateway does not know that token; ask its admin for one." if token else "Enter your token."
            raise Refused(sentence, reason="not_allowed")
        self.settings["audit_log"].record("sign in", user=user.username, address=address)
        start_page_session(self, user.username, token)
        self.redirect(self.base_url, status=HTTPStatus.SEE_OTHER)


class HubSignInHandler(SignInFormHandler):
    """``/sharedkernel/page/hub``: sends the browser to JupyterHub, which sends it back to ``…/return``."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Begin a sign-in."""
        users = self.hub_users
        verifier = secrets.token_urlsafe(32)
        set_secret_cookie(self, self.pending_cookie, verifier, max_age=SIGN_IN_SECONDS)
        self.redirect(users.sign_in_address(verifier, self.redirect_uri))

    @property
    def hub_users(self) -> HubUsers:
        """The hub's users.

        Raises
        ------
        HTTPError
            404, where nobody signs in with a hub.
        """
        identity = self.identity
        if not isinstance(identity, HubUsers) or not identity.can_sign_in:
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
        verifier, state = self.get_cookie(self.pending_cookie) or "", self.get_query_argument("state", "")
        self.clear_cookie(self.pending_cookie, path=self.base_url)
        if not (verifier and hmac.compare_digest(state_of(verifier).encode(), state.encode())):
            sentence = "This sign-in is too old, or began in another browser, or yours keeps no cookies; try again."
            raise Refused(sentence, reason="not_allowed")
        if refusal := self.get_query_argument("error", ""):
            raise Refused(f"JupyterHub has not signed you in ({refusal[:200]}).", reason="not_allowed")
        found = await users.user_for_code(self.get_query_argument("code", ""), verifier, self.redirect_uri, address)
        if found is None:
            sentence = "JupyterHub does not answer, or does not let you use this gateway; try again, or ask its admin."
            raise Refused(sentence, reason="not_allowed")
        user, token = found
        self.settings["audit_log"].record("sign in", user=user.username, address=address, by="JupyterHub")
        start_page_session(self, user.username, token)
        self.redirect(self.base_url, status=HTTPStatus.SEE_OTHER)


class SignOutHandler(GatewayHandler):
    """``/sharedkernel/page/sign-out``: ends the page session."""

    actions: ClassVar[dict[str, str]] = {"POST": "sign out"}

    @for_users
    async def post(self) -> None:
        """End it, and have its cookie forgotten."""
        identity = self.identity
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
        me = {"user": user.username, "admin": user.admin, "auth": _kind_of(self.identity), "version": __version__}
        self.finish(json.dumps(me | install._asdict()))  # which asks for the token


class TokenHandler(GatewayHandler):
    """``/sharedkernel/page/token``: another token of the user, for another machine."""

    actions: ClassVar[dict[str, str]] = {"POST": "make token"}

    @for_users
    async def post(self) -> None:
        """Return a new token; those that the user has stay good."""
        identity = self.identity
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

    head = allow_unauthenticated(web.StaticFileHandler.head)
    get = allow_unauthenticated(web.StaticFileHandler.get)


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
