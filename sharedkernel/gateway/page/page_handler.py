"""Base of the pages that the gateway serves: what they may load, and how they say what went wrong."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any, cast

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.audit import AuditedHandler
from sharedkernel.gateway.auth.identity import TokenOnlyIdentity
from sharedkernel.gateway.errors import ErrorResponseMixin, http_status

#: what the browser runs and how it looks, built from `labextension/src/page/`
STATIC = Path(__file__).parent / "static"
_SCRIPT, _STYLE = "page.js", "page.css"
#: the page loads nothing from elsewhere, runs nothing that is written into it, and is shown in no other page
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
TITLE = "Shared GPU"


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
            self.set_status(http_status(error))
            sentence = str(error)
        if isinstance(error, web.HTTPError) and "_xsrf" in (error.log_message or ""):
            sentence = "This form is too old, or your browser keeps no cookies; go back, load the page again and retry."
        reason = sentence or f"{status_code}: {self._reason}."
        self.finish_page(f'<main class="sk-SignIn"><h1>{TITLE}</h1><p>{html.escape(reason)}</p></main>')


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
