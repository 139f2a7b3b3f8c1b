"""Connect a user's Jupyter to a gateway: check address and token, add the kernels, keep what a relay needs.

The command `sharedkernel install` and the form in JupyterLab's panel both do it by these functions.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager

from sharedkernel.client.gateway.connection import CONNECT_TIMEOUT, Gateway
from sharedkernel.client.gateway.credentials import Credentials, load_credentials
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.trust import fetch_certificate, fingerprint_of
from sharedkernel.client.relay.kernelspec import write_kernelspec
from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import DISPLAY_NAME


def shown_certificate(url: str) -> tuple[str, str]:
    """Return the certificate (PEM) that a gateway presents, and its fingerprint; no token is shown.

    Raises
    ------
    GatewayUnreachable
        When there is none.
    """
    try:
        certificate = fetch_certificate(url, seconds=CONNECT_TIMEOUT)
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or error
        raise GatewayUnreachable(
            f"{url} shows no certificate ({why}); is it the gateway's address, and running?"
        ) from None
    return ssl.DER_cert_to_PEM_cert(certificate), fingerprint_of(certificate)


def expected_certificate(url: str, fingerprint: str) -> str:
    """Return the certificate (PEM) that a gateway presents, if it has *fingerprint*.

    Raises
    ------
    GatewayUnreachable
        When there is none.
    GatewayRefused
        With the reason "fingerprint", when it has another one.
    """
    certificate, shown = shown_certificate(url)
    if shown != fingerprint:
        raise GatewayRefused(
            f"the certificate of {url} has another fingerprint, {shown}. If it was renewed, copy the command from the "
            "gateway's page again; if not, somebody else may answer in its place.",
            status=495,
            reason="fingerprint",
        )
    return certificate


def check_gateway(credentials: Credentials, certificate: str | None) -> list[str]:
    """Show a gateway the token, and return the Python environments that it offers by name.

    Its own *certificate* (PEM), if there is one, need not be kept yet. Errors are those of :class:`.Gateway`.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        if certificate is not None:
            file.write(certificate)
            file.flush()
            credentials = replace(credentials, ca_file=file.name)
        return Gateway(credentials).check()


def kept_ca_file(url: str, kept_path: Path) -> str | None:
    """Return what the file of credentials at *kept_path* trusts for the gateway at *url*; None: nothing of its own."""
    with contextlib.suppress(ConfigError):
        kept = load_credentials(kept_path)
        if kept.url == url and kept.ca_file is not None and Path(kept.ca_file).is_file():
            return kept.ca_file
    return None


def install_kernelspecs(
    environments: Iterable[str], *, kernel_name: str, display_name: str = DISPLAY_NAME, prefix: str | None = None
) -> dict[str, str]:
    """Add a kernel for a gateway's usual Python and one for each of its *environments*.

    Parameters
    ----------
    environments
        By name.
    kernel_name, display_name
        Of the usual one.
    prefix
        Of the Python environment in which Jupyter looks; None: the user's own folder.

    Returns
    -------
    dict
        Where each lies, by what a launcher shows.

    Raises
    ------
    OSError
        When they cannot be written.
    """
    manager = KernelSpecManager()
    # It would warn of a prefix that this program's own Jupyter does not look in: that is what a prefix is for.
    manager.log = logging.getLogger(__name__)
    manager.log.setLevel(logging.ERROR)
    places = {}
    for environment in ("", *environments):
        shown = display_name
        if environment:
            shown = f"{'Shared GPU' if display_name == DISPLAY_NAME else display_name} ({environment})"
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory) / "kernelspec"
            write_kernelspec(source, name=kernel_name, display_name=shown, environment=environment)
            places[shown] = manager.install_kernel_spec(
                str(source),
                kernel_name=f"{kernel_name}-{environment}" if environment else kernel_name,
                user=prefix is None,
                prefix=prefix,
            )
    return places
