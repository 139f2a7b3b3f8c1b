"""Error responses: one JSON sentence with an HTTP status, logged without a traceback."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, NoReturn

from jupyter_server.prometheus.log_functions import prometheus_log_method
from prometheus_client import Counter
from tornado import web

from sharedkernel.errors import Refused, SharedKernelError

_REFUSALS = Counter("sharedkernel_refused_requests", "Requests that the gateway refused, by reason.", ["reason"])

#: reasons of errors by their HTTP status; other refusals are conflicts, other errors the gateway's fault
_REASONS = {
    HTTPStatus.BAD_REQUEST: ("config", "bad_request"),
    HTTPStatus.FORBIDDEN: ("token_expired", "not_admin", "not_allowed", "switched_off", "wrong_invitation"),
    HTTPStatus.NOT_FOUND: (
        "no_such_kernel", "session_not_found", "session_ended", "not_shelved", "no_class", "no_port",
    ),
    HTTPStatus.TOO_MANY_REQUESTS: (
        "quota", "too_many_bytes", "too_many_failures", "too_many_requests", "too_many_websockets",
    ),
    HTTPStatus.NOT_IMPLEMENTED: ("earlier_version",),
    HTTPStatus.BAD_GATEWAY: ("protocol",),
    HTTPStatus.SERVICE_UNAVAILABLE: ("draining", "host_away", "executor_unavailable", "identity_unavailable", "start"),
    HTTPStatus.GATEWAY_TIMEOUT: ("not_accepted",),
}  # fmt: skip
_STATUSES = {reason: status for status, reasons in _REASONS.items() for reason in reasons}


def refusal_in(error: BaseException | None) -> SharedKernelError | None:
    """Return *error*, or the error that a handler of Jupyter's has wrapped, if it is one of this package's."""
    for candidate in (error, getattr(error, "__cause__", None)):
        if isinstance(candidate, SharedKernelError):
            return candidate
    return None


def set_refused(handler: web.RequestHandler, refusal: SharedKernelError) -> None:
    """Count *refusal*, and set its status, which only this function decides, and its headers."""
    _REFUSALS.labels(reason=refusal.reason).inc()
    other = HTTPStatus.CONFLICT if isinstance(refusal, Refused) else HTTPStatus.INTERNAL_SERVER_ERROR
    handler.set_status(_STATUSES.get(refusal.reason, other))
    if (retry_after := getattr(refusal, "retry_after", None)) is not None:
        handler.set_header("Retry-After", str(max(1, round(retry_after))))


def _write(handler: web.RequestHandler, refusal: SharedKernelError) -> str:
    """Set status and headers for *refusal*, and return the body."""
    set_refused(handler, refusal)
    handler.set_header("Content-Type", "application/json")
    return json.dumps({"message": str(refusal), "reason": refusal.reason})


def finish_refused(handler: web.RequestHandler, refusal: SharedKernelError) -> NoReturn:
    """End a request with an error response.

    Parameters
    ----------
    handler
        Handles the request; one of Jupyter's or of this package.
    refusal
        The error.

    Raises
    ------
    Finish
        Always: tornado ends the request with it.
    """
    raise web.Finish(_write(handler, refusal))


class ErrorResponseMixin(web.RequestHandler):
    """Answers a :class:`~sharedkernel.errors.SharedKernelError` with ``{"message", "reason"}``."""

    _refused = False

    def get_json_body(self) -> Any:
        """Return the request's JSON body; Jupyter's own method fails on a body that is not UTF-8.

        Raises
        ------
        Refused
            When it is not UTF-8.
        """
        try:
            return super().get_json_body()  # type: ignore[misc]
        except UnicodeDecodeError:
            raise Refused("the request's body is no JSON in UTF-8.", reason="bad_request") from None

    def check_origin(self, origin: str = "") -> bool:
        """Return True if the page that sent this request is the gateway's own; *origin* is for tornado.

        Raises
        ------
        Refused
            When it is another site's, as it seems to be behind a proxy that sends a host of its own.
        """
        if super().check_origin(origin):  # type: ignore[misc]
            return True
        page, host = self.request.headers.get("Origin", ""), self.request.headers.get("Host", "")
        raise Refused(
            f"this came from a page at {page[:200]}, but asks for {host[:200]}: if the gateway is behind a proxy, the "
            "proxy has to pass the header Host on as it is (nginx: `proxy_set_header Host $http_host;`).",
            reason="not_allowed",
        )

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log a refusal at INFO, without a traceback."""
        refusal = refusal_in(value)
        if refusal is None:
            super().log_exception(typ, value, tb)
        else:
            self.log.info("refused %s %s (%s): %s", self.request.method, self.request.path, refusal.reason, refusal)  # type: ignore[attr-defined]

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write the response."""
        refusal = refusal_in(kwargs.get("exc_info", (None, None))[1])
        if refusal is None:
            super().write_error(status_code, **kwargs)
            return
        self._refused = True
        self.finish(_write(self, refusal))

    def _log(self) -> None:
        if self._refused:
            prometheus_log_method(self)  # log_exception has logged it
        else:
            super()._log()
