"""The route behind the panel's form: which gateway this Jupyter server has, connecting it to one, and disconnecting it.

It writes and removes what `sharedkernel install` and `uninstall` do, by the same functions. The token comes in a
request's body, which no server logs; it is shown to the gateway over a connection that has been verified, and kept in a
file of the user's alone. No answer and no log line has it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urldefrag

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.gateway.gateway_client import GatewayClient
from tornado import web

from sharedkernel.client.connect import (
    check_gateway,
    disconnect,
    expected_certificate,
    install_kernelspecs,
    kept_ca_file,
    shown_certificate,
)
from sharedkernel.client.gateway.credentials import (
    CA_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Credentials,
    certificate_path,
    check_token,
    check_url,
    credentials_path,
    find_kept,
    load_credentials,
    store_credentials,
)
from sharedkernel.client.gateway.refusals import GatewayRefused
from sharedkernel.client.gateway.server import check_fingerprint, to_thread
from sharedkernel.errors import ConfigError, SharedKernelError

#: most characters of each field
_LONGEST = 4096


class FieldRefused(SharedKernelError):
    """A field of the form holds something that cannot be used.

    Parameters
    ----------
    message
        One sentence for the user.
    field
        ``"url"``, ``"token"`` or ``"fingerprint"``; empty: none of them is wrong.
    fingerprint
        Of the certificate that the gateway presents, for the user to compare; empty: that is not the matter.
    """

    reason = "field"

    def __init__(self, message: str, field: str, fingerprint: str = "") -> None:
        super().__init__(message)
        self.field, self.fingerprint = field, fingerprint


def decided_elsewhere(kernel_name: str) -> str | None:
    """Return who decides which gateway this Jupyter server has, in a sentence; None: its user."""
    client = GatewayClient.instance()
    if client.gateway_enabled:
        return f"This Jupyter server was started with --gateway-url={client.url}; start it without to choose here."
    given = [name for name in (URL_VARIABLE, TOKEN_VARIABLE) if os.environ.get(name)]
    if given:
        verb = "decides" if len(given) == 1 else "decide"
        return (
            f"{' and '.join(given)} in this Jupyter server's environment {verb} which gateway it has; change it there "
            "and restart the server."
        )
    with contextlib.suppress(ConfigError):
        if not load_credentials(find_kept(kernel_name)).token:
            return "This server's JupyterHub decides which gateway it has; ask its admin."
    return None


def connect(kernel_name: str, url: str, token: str, fingerprint: str) -> None:
    """Check a gateway's address and a token, then add the kernels and keep both.

    Parameters
    ----------
    kernel_name
        Of the kernelspec.
    url, token
        As the user typed them.
    fingerprint
        Of the gateway's certificate, where the user has compared it; empty: an authority has to have signed it.

    Raises
    ------
    FieldRefused
        When something is wrong; nothing has changed then, unless a disk refused a file.
    """
    if max(map(len, (url, token, fingerprint))) > _LONGEST:
        raise FieldRefused("that is too long.", "")
    with _refusing("url"):
        url = check_url(urldefrag(url.strip()).url)
    with _refusing("token"):
        token = check_token(token)
    with _refusing("fingerprint"):
        fingerprint = check_fingerprint(fingerprint) if fingerprint and url.startswith("https:") else ""
    path = credentials_path(kernel_name)
    try:
        certificate = expected_certificate(url, fingerprint) if fingerprint else None
        ca_file = str(certificate_path(path)) if fingerprint else os.environ.get(CA_VARIABLE) or kept_ca_file(url, path)
        credentials = Credentials(url=url, token=token, ca_file=ca_file)
        environments = check_gateway(credentials, certificate)
    except GatewayRefused as error:
        if error.reason == "fingerprint" or (error.reason == "certificate" and not fingerprint):
            raise _to_compare(url, fingerprint) from None
        if error.status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise FieldRefused(str(error), "url") from None
        unknown = "the gateway does not accept this token; copy it again, whole, or ask its admin for another."
        raise FieldRefused(unknown if error.reason == GatewayRefused.reason else str(error), "token") from None
    except SharedKernelError as error:
        raise FieldRefused(str(error), "url") from None
    try:
        install_kernelspecs(environments, kernel_name=kernel_name)
        store_credentials(path, credentials, certificate)
    except OSError as error:
        raise FieldRefused(f"cannot write {error.filename}: {error.strerror}.", "") from None


@contextlib.contextmanager
def _refusing(field: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise FieldRefused(str(error), field) from None


def _to_compare(url: str, compared: str) -> FieldRefused:
    """Return the error that has the user compare the fingerprint of a gateway's certificate.

    Parameters
    ----------
    url
        Of the gateway.
    compared
        The fingerprint that the user has compared already; empty: none.
    """
    try:
        shown = shown_certificate(url)[1]
    except SharedKernelError as error:
        return FieldRefused(str(error), "url")
    why = (
        "the gateway now shows another certificate than the one that you compared; somebody else may answer in its "
        "place. Ask its admin before you go on."
        if compared
        else "no authority that this computer knows has signed the gateway's certificate. Compare its fingerprint with "
        "the one in the command on the gateway's page, or ask its admin."
    )
    return FieldRefused(why, "fingerprint", shown)


class ConnectHandler(APIHandler):
    """``/sharedkernel/api/gateway``: which is kept or who decides it (GET), another one (POST), or none (DELETE)."""

    auth_resource = "sharedkernel"

    def initialize(self, kernel_name: str, on_changed: Callable[[], Awaitable[None]]) -> None:
        """Take the kernelspec's name, and what to do once it has another gateway, or none."""
        self._kernel_name, self._on_changed = kernel_name, on_changed

    @web.authenticated
    @authorized
    def get(self) -> None:
        """Answer ``url``, the address that is kept, and ``decided``, a sentence, where no form can change it."""
        url = ""
        with contextlib.suppress(ConfigError):
            url = load_credentials(credentials_path(self._kernel_name)).url
        self.finish(json.dumps({"url": url, "decided": decided_elsewhere(self._kernel_name)}))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Connect to the gateway in the body: ``url``, ``token`` and, where it was compared, ``fingerprint``."""
        body: Any = self.get_json_body()
        url, token, fingerprint = (
            str(body.get(name) or "") if isinstance(body, dict) else "" for name in ("url", "token", "fingerprint")
        )
        await self._change(partial(connect, self._kernel_name, url, token, fingerprint))

    @web.authenticated
    @authorized
    async def delete(self) -> None:
        """Remove the kernels, and the address and token that are kept."""
        await self._change(partial(_disconnect, self._kernel_name))

    async def _change(self, work: Callable[[], None]) -> None:
        try:
            if (decided := decided_elsewhere(self._kernel_name)) is not None:
                raise FieldRefused(decided, "")
            await to_thread(work)
        except FieldRefused as error:
            # Not the sentence: what was typed into the wrong field may be in it.
            self.log.info("the gateway was not changed: wrong %s", error.field or "server")
            self.set_status(HTTPStatus.BAD_REQUEST)
            answer = {"message": str(error), "field": error.field, "fingerprint": error.fingerprint}
            self.finish(json.dumps({**answer, "reason": error.reason}))
            return
        await self._on_changed()
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()


def _disconnect(kernel_name: str) -> None:
    try:
        disconnect(kernel_name)
    except OSError as error:
        raise FieldRefused(f"cannot remove {error.filename}: {error.strerror}.", "") from None
