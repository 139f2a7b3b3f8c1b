"""Serves the page, signs people in and out, and says who they are."""

from __future__ import annotations

import html
import json
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, cast

from jupyter_server.auth.decorator import allow_unauthenticated, authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from sharedkernel._version import __version__
from sharedkernel.distribution import pip_install
from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.audit import AuditedHandler
from sharedkernel.gateway.auth.hub import HubUsers
from sharedkernel.gateway.auth.identity import TokenOnlyIdentity, TokenUsers
from sharedkernel.gateway.errors import ErrorResponseMixin, http_status
from sharedkernel.gateway.http.handlers import GatewayHandler
from sharedkernel.gateway.http.request_guard import SIGN_IN_PATH
from sharedkernel.gateway.page.audit_tail import AuditTailHandler
from sharedkernel.gateway.page.figures import FiguresHandler
from sharedkernel.gateway.page.history import HistoryHandler
from sharedkernel.gateway.page.room_requests import AskForRoomHandler
from sharedkernel.gateway.page.timeline import TimelineHandler

#: what the browser runs and how it looks, built from `labextension/src/page/`
STATIC = Path(__file__).parent / "static"
_SCRIPT, _STYLE = "page.js", "page.css"
#: the page loads nothing from elsewhere, runs nothing that is written into it, and is shown in no other page
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_TITLE = "Shared GPU"


class PageHandler(ErrorResponseMixin, AuditedHandler, JupyterHandler):
    """Base of what people see."""

    auth_resource = "sharedkernel"

    @property
    def content_security_policy(self) -> str:
        """What the browser may load and run."""
        return _POLICY

    def set_default_headers(self) -> None:
        """Have nothing stored, and no address told to other sites."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "same-origin")  # without any, the form has no origin either

    @property
    def identity(self) -> TokenOnlyIdentity:
        """What knows the users."""
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
            f'<meta name="color-scheme" content="light dark"><title>{_TITLE}</title>'
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
                f'<main class="sk-SignIn"><h1>{_TITLE}</h1><p>The page was not built: in a checkout, run '
                f"<code>make labextension</code>. {instead}</p></main>"
            )
            return
        self.finish_page(f"{body}<noscript>This page needs JavaScript. {instead}</noscript>", script=_SCRIPT)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with a page of one sentence."""
        error = kwargs.get("exc_info", (None, None))[1]
        sentence = str(error) if isinstance(error, Refused) else ""
        if isinstance(error, web.HTTPError) and "_xsrf" in (error.log_message or ""):
            sentence = "This form is too old, or your browser keeps no cookies; go back, load the page again and retry."
        reason = sentence or f"{status_code}: {self._reason}."
        self.finish_page(f'<main class="sk-SignIn"><h1>{_TITLE}</h1><p>{html.escape(reason)}</p></main>')


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


class SignInHandler(PageHandler):
    """``/sharedkernel/page/sign-in``: a form for a token."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Show the form."""
        self._show_form()

    @allow_unauthenticated
    async def post(self) -> None:
        """Start a page session for a right token."""
        token, address = self.get_body_argument("token", ""), self.request.remote_ip or ""
        try:
            user = await self.identity.check_token(token, address) if token else None
        except Refused as refusal:
            if (retry_after := getattr(refusal, "retry_after", None)) is not None:
                self.set_header("Retry-After", str(max(1, round(retry_after))))
            self._show_form(f"{refusal}", http_status(refusal))
            return
        if user is None:
            sentence = "This gateway does not know that token; ask its admin for one." if token else "Enter your token."
            self._show_form(sentence, HTTPStatus.FORBIDDEN)
            return
        self.settings["audit_log"].record("sign in", user=user.username, address=address)
        start_page_session(self, user.username, token)
        self.redirect(self.base_url, status=HTTPStatus.SEE_OTHER)

    def _show_form(self, problem: str = "", status: HTTPStatus = HTTPStatus.OK) -> None:
        self.set_status(status)
        said = f'<p id="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
        self.finish_page(
            f'<main class="sk-SignIn"><h1>{_TITLE}</h1><form method="post">{self.xsrf_form_html()}{said}'
            '<p><label for="token">Your token</label></p>'
            '<p><input id="token" name="token" type="password" required autofocus autocomplete="current-password"></p>'
            '<p><button type="submit">Sign in</button></p></form>'
            '<p class="sk-SignIn-help">Your admin gives you a token. On a machine that is connected already, '
            "<code>sharedkernel status</code> and <code>top</code> show the same as this page.</p></main>"
        )


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
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()


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
        self.finish(
            json.dumps(
                {
                    "user": user.username,
                    "admin": user.admin,
                    "auth": _kind_of(cast("TokenOnlyIdentity", self.identity_provider)),
                    "version": __version__,
                    # it asks for the token
                    "install_command": install_command(self),
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
        token = identity.make_token(self.current_user.username)
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps({"token": token}))


class StaticHandler(web.StaticFileHandler):
    """``/sharedkernel/page/static/NAME``: what the page runs, which is no secret."""

    def set_extra_headers(self, path: str) -> None:
        """Have the browser take each file for what it says it is, and ask whether it has changed."""
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Cache-Control", "no-cache")

    @allow_unauthenticated
    async def head(self, path: str) -> None:
        """Return what is known of a file."""
        await super().head(path)

    @allow_unauthenticated
    async def get(self, path: str, include_body: bool = True) -> None:
        """Return a file."""
        await super().get(path, include_body)


def start_page_session(handler: JupyterHandler, user: str, token: str) -> None:
    """Sign *user* in on the page with the answer of *handler*; *token* is theirs."""
    identity = cast("TokenOnlyIdentity", handler.identity_provider)
    handler.set_cookie(
        identity.page_cookie(handler.request),
        identity.page_sessions.start(user, token),
        path=handler.base_url,
        httponly=True,
        samesite="Lax",
        secure=handler.request.protocol == "https",
    )


def install_command(handler: JupyterHandler) -> str:
    """Return what connects a machine to the gateway at the address of *handler*'s request."""
    url = f"{handler.request.protocol}://{handler.request.host}{handler.base_url}".rstrip("/")
    return f"{pip_install()} && sharedkernel install --gateway-url {url} --user"


def _kind_of(identity: TokenOnlyIdentity) -> str:
    """Return how people sign in: by tokens made here ("token"), by the hub's, or by the only user's."""
    if isinstance(identity, HubUsers):
        return "hub"
    return "token" if isinstance(identity, TokenUsers) else "single"


default_handlers = [
    (r"/", FrontPageHandler),
    (rf"/{SIGN_IN_PATH}", SignInHandler),
    (r"/sharedkernel/page/sign-out", SignOutHandler),
    (r"/sharedkernel/page/me", MeHandler),
    (r"/sharedkernel/page/token", TokenHandler),
    (r"/sharedkernel/page/figures", FiguresHandler),
    (r"/sharedkernel/api/audit", AuditTailHandler),
    (r"/sharedkernel/api/history", HistoryHandler),
    (r"/sharedkernel/api/timeline", TimelineHandler),
    (r"/sharedkernel/api/sessions/([\w-]+)/ask-for-room", AskForRoomHandler),
    (r"/sharedkernel/page/static/(.*)", StaticHandler, {"path": STATIC}),
]
