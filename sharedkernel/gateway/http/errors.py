"""How an error of ours is answered: one JSON sentence with a proper status, logged without a traceback."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, NoReturn

from jupyter_server.prometheus.log_functions import prometheus_log_method
from tornado import web

from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.gateway.http.metrics import REFUSALS

#: statuses of errors, by reason; other refusals are conflicts, other errors the gateway's fault
_STATUSES = {
    "config": HTTPStatus.BAD_REQUEST,
    "bad_request": HTTPStatus.BAD_REQUEST,
    "protocol": HTTPStatus.BAD_GATEWAY,
    "not_admin": HTTPStatus.FORBIDDEN,
    "not_allowed": HTTPStatus.FORBIDDEN,
    "no_such_kernel": HTTPStatus.NOT_FOUND,
    "session_not_found": HTTPStatus.NOT_FOUND,
    "not_shelved": HTTPStatus.NOT_FOUND,
    "quota": HTTPStatus.TOO_MANY_REQUESTS,
    "too_many_failures": HTTPStatus.TOO_MANY_REQUESTS,
    "too_many_websockets": HTTPStatus.TOO_MANY_REQUESTS,
    "draining": HTTPStatus.SERVICE_UNAVAILABLE,
    "executor_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "identity_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "start": HTTPStatus.SERVICE_UNAVAILABLE,
    "earlier_version": HTTPStatus.NOT_IMPLEMENTED,
}


def http_status(error: SharedKernelError) -> HTTPStatus:
    """Return the HTTP status of *error*: the one place that knows."""
    other = HTTPStatus.CONFLICT if isinstance(error, Refused) else HTTPStatus.INTERNAL_SERVER_ERROR
    return _STATUSES.get(error.reason, other)


def refusal_in(error: BaseException | None) -> SharedKernelError | None:
    """Return the error of ours that *error* is, or that one of Jupyter's handlers has wrapped."""
    for candidate in (error, getattr(error, "__cause__", None)):
        if isinstance(candidate, SharedKernelError):
            return candidate
    return None


def _write(handler: web.RequestHandler, refusal: SharedKernelError) -> str:
    """Set status and headers for *refusal* and return the body."""
    REFUSALS.labels(reason=refusal.reason).inc()
    handler.set_status(http_status(refusal))
    handler.set_header("Content-Type", "application/json")
    if (retry_after := getattr(refusal, "retry_after", None)) is not None:
        handler.set_header("Retry-After", str(max(1, round(retry_after))))
    return json.dumps({"message": str(refusal), "reason": refusal.reason})


def finish_refused(handler: web.RequestHandler, refusal: SharedKernelError) -> NoReturn:
    """End the request of *handler*, be it Jupyter's or ours, with *refusal*.

    Raises
    ------
    Finish
        Always: by it tornado ends a request.
    """
    raise web.Finish(_write(handler, refusal))


class AnswersRefusals(web.RequestHandler):
    """Answers an error of ours as ``{"message", "reason"}``."""

    _refused = False

    def get_json_body(self) -> Any:
        """Return the request's body as Jupyter does, which forgets that it may be no text.

        Raises
        ------
        Refused
            When it is none.
        """
        try:
            return super().get_json_body()  # type: ignore[misc]
        except UnicodeDecodeError:
            raise Refused("the request's body is no JSON in UTF-8.", reason="bad_request") from None

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log a refusal at INFO, without a traceback."""
        refusal = refusal_in(value)
        if refusal is None:
            super().log_exception(typ, value, tb)
        else:
            self.log.info("refused %s %s (%s): %s", self.request.method, self.request.path, refusal.reason, refusal)  # type: ignore[attr-defined]

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write the answer."""
        refusal = refusal_in(kwargs.get("exc_info", (None, None))[1])
        if refusal is None:
            super().write_error(status_code, **kwargs)
            return
        self._refused = True
        self.finish(_write(self, refusal))

    def _log(self) -> None:
        if self._refused:
            prometheus_log_method(self)  # it is in the log already, in fewer words
        else:
            super()._log()
