"""One question to a gateway's own API, with answers and errors that a person can read (user's side; no torch)."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from sharedkernel.errors import Refused, SharedKernelError

#: the status document, see `executor/control/status_builder.py`
STATUS_PATH = "/sharedkernel/api/status"
#: what is on shelves, see `gateway/http/shelf_handlers.py`
SHELVES_PATH = "/sharedkernel/api/shelves"


class GatewayUnavailable(SharedKernelError):
    """The gateway cannot be reached, or what answers there is none."""

    reason = "gateway_unavailable"


def fetch_status(url: str, token: str, *, ca_file: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """Return the status document as the token's user may see it; parameters and errors are those of :func:`ask`."""
    status = ask(url, token, STATUS_PATH, ca_file=ca_file, timeout=timeout)
    if not isinstance(status.get("device"), dict):
        raise GatewayUnavailable(f"what answers at {url} is not a sharedkernel gateway.")
    return status


def ask(
    url: str, token: str, path: str, *, method: str = "GET", ca_file: str | None = None, timeout: float = 5.0
) -> dict[str, Any]:
    """Return the answer to a request of a gateway's own API.

    Parameters
    ----------
    url
        The gateway's address, such as ``http://127.0.0.1:8585``.
    token
        The user's token.
    path, method
        What is asked for.
    ca_file
        Path of the authorities (PEM) that its certificate is signed by; None: those this system trusts.
    timeout
        Seconds to wait for the answer.

    Raises
    ------
    GatewayUnavailable
        When nobody answers, or something that is no gateway.
    Refused
        When the gateway refuses, with its own sentence.
    """
    if not url.startswith(("http://", "https://")):
        raise GatewayUnavailable(f"{url!r} is not a gateway's address; write it like http://127.0.0.1:8585.")
    headers = {"Authorization": f"token {token}"}
    request = urllib.request.Request(url.rstrip("/") + path, headers=headers, method=method)
    try:
        with _opener(url, ca_file).open(request, timeout=timeout) as response:
            answer: Any = json.load(response)
    except urllib.error.HTTPError as error:
        raise _refusal(url, path, error) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        if url.startswith("http:") and isinstance(why, ConnectionResetError):  # what TLS makes of a plain request
            raise GatewayUnavailable(
                f"what answers at {url} hung up ({why}); if the gateway encrypts, its address begins with https://."
            ) from None
        raise GatewayUnavailable(f"no gateway answers at {url} ({why}); is it running, is the address right?") from None
    if not isinstance(answer, dict):
        raise GatewayUnavailable(f"what answers at {url} is not a sharedkernel gateway.")
    return answer


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for this gateway alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opener(url: str, ca_file: str | None) -> urllib.request.OpenerDirector:
    """Return an opener that uses the environment's proxies, except for this machine itself."""
    handlers: list[Any] = [_NoRedirects]
    if ca_file is not None:
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
    if urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def _refusal(url: str, path: str, error: urllib.error.HTTPError) -> SharedKernelError:
    """Return the gateway's own sentence as an error, or ours where it gave none."""
    try:
        body = json.loads(error.read())
        message, reason = body["message"], body.get("reason")
    except (OSError, ValueError, KeyError, TypeError):
        message, reason = None, None
    if error.code in (401, 403) and not reason:  # it has one where the token is known, and does not suffice
        return Refused(f"the gateway at {url} does not accept this token; ask its admin for one.", reason="token")
    if error.code == 404 and not reason:
        older = "" if path == STATUS_PATH else ", or of an earlier version"
        path = path.partition("?")[0]
        return GatewayUnavailable(f"what answers at {url} is not a sharedkernel gateway{older} (it has no {path}).")
    return Refused(message or f"the gateway at {url} answered {error.code} {error.reason}.", reason=reason)
