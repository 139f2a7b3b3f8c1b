"""Trust in gateways' certificates: in those of authorities that a machine knows, or in a single one."""

from __future__ import annotations

import hashlib
import re
import ssl
from urllib.parse import urlsplit

from sharedkernel.client.gateway.proxy import connect
from sharedkernel.errors import ConfigError

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def client_context(ca_file: str | None) -> ssl.SSLContext:
    """Return how connections to a gateway are encrypted.

    Parameters
    ----------
    ca_file
        Path of the certificates (PEM) that are trusted: of authorities, or a gateway's own; None: those that this
        system trusts.

    Raises
    ------
    OSError
        When the file cannot be read as certificates.
    """
    context = ssl.create_default_context(cafile=ca_file)
    # Trust a gateway's own certificate, even if another authority signed it; the default from Python 3.13 on.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 fingerprint of a certificate (DER), in 64 lower-case hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def check_fingerprint(text: str) -> str:
    """Return a fingerprint as :func:`fingerprint_of` writes it; colons, spaces and capitals may be in *text*.

    Raises
    ------
    ConfigError
        When it is none.
    """
    fingerprint = re.sub(r"[:\s]", "", text).lower()
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ConfigError(
            f"{text!r} is no SHA-256 fingerprint, which has 64 hexadecimal digits; copy the command from the gateway's "
            "page again, whole."
        )
    return fingerprint


def fetch_certificate(url: str, *, seconds: float) -> bytes:
    """Return the certificate (DER) that a gateway presents, without checking who signed it.

    Parameters
    ----------
    url
        The gateway's address, with ``https://``.
    seconds
        To wait for each step.

    Raises
    ------
    OSError
        When there is no gateway, or it does not encrypt.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = connect(host, port, is_encrypted=True, seconds=seconds)
    with connection, context.wrap_socket(connection, server_hostname=host) as encrypted:
        certificate = encrypted.getpeercert(binary_form=True)
    if certificate is None:  # every server that encrypts presents one
        raise ssl.SSLError("no certificate was presented")
    return certificate
