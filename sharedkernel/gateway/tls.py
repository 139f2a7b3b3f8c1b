"""Encryption: the gateway's certificate, and a check that it listens beyond this machine only with one."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
from shlex import quote

from sharedkernel.client.gateway.server import client_context, fingerprint_of, is_loopback
from sharedkernel.errors import ConfigError

#: names for which the outcome of a check is kept
_MAX_NAMES = 16
#: times that each side of a handshake may wait for the other
_MAX_FLIGHTS = 10


def check_exposure(ip: str, *, encrypted: bool, allowed: bool) -> None:
    """Check that tokens and notebooks do not cross the network unencrypted.

    Parameters
    ----------
    ip
        Address to listen on; empty: all addresses.
    encrypted
        Whether the gateway encrypts.
    allowed
        Whether the configuration allows it all the same.

    Raises
    ------
    ConfigError
        When they would.
    """
    if not (encrypted or allowed or is_loopback(ip)):
        raise ConfigError(
            f"serving on {ip or 'every address'} without encryption would show tokens and notebooks to the network; "
            "give --certfile and --keyfile, or, where a proxy on the way encrypts, set "
            "c.SharedKernelGateway.allow_insecure_remote = True."
        )


class Certificate:
    """A certificate and its key, which can be read again after a renewal.

    Parameters
    ----------
    certfile, keyfile
        Paths of PEM files; no key: it is in the certificate's file.
    client_ca
        Path of the certificate authorities for clients' certificates; empty: clients need none.

    Raises
    ------
    ConfigError
        When they cannot be used.
    """

    def __init__(self, certfile: str, keyfile: str = "", client_ca: str = "") -> None:
        self._files = certfile, keyfile or None
        # kept for some names alone: anybody can ask by any
        self._fingerprint_by_name = functools.lru_cache(_MAX_NAMES)(self._find_fingerprint)
        #: for tornado's server
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.load()
        if client_ca:
            try:
                self.context.load_verify_locations(client_ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"{client_ca} cannot be read as certificates ({_why(error)}).") from None
            self.context.verify_mode = ssl.CERT_REQUIRED

    def load(self) -> None:
        """Use the files' current content for new connections.

        Raises
        ------
        ConfigError
            When it cannot be used; the old content is still used then.
        """
        certfile, keyfile = self._files
        if missing := [file for file in filter(None, self._files) if not os.path.exists(file)]:
            raise ConfigError(
                f"{certfile} cannot be used as certificate and key: there is no {' and no '.join(missing)}. Name yours "
                f"with --certfile and --keyfile, or make some that sign themselves: {_self_signed(certfile, keyfile)}"
            )
        try:
            # Tried in a context of its own: a failure half-way must not mix an old key with a new certificate.
            for context in (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), self.context):
                context.load_cert_chain(certfile, keyfile, password=_no_password)
            self._fingerprint_by_name.cache_clear()
        except (OSError, ssl.SSLError, ValueError) as error:
            files = " and ".join(filter(None, self._files))
            raise ConfigError(
                f"{files} cannot be used as certificate and key ({_why(error)}); check --certfile and --keyfile."
            ) from None

    def fingerprint_to_check(self, name: str) -> str | None:
        """Return the certificate's fingerprint if machines need it in order to trust this gateway.

        They do not where it is signed by one of the usual authorities, as far as this system knows them. It would not
        help them where the certificate is for other names than the one by which they reach the gateway.

        Parameters
        ----------
        name
            By which they reach it: a host's name or an address.
        """
        return self._fingerprint_by_name(name)

    def _find_fingerprint(self, name: str) -> str | None:
        certfile = self._files[0]
        with contextlib.suppress(OSError, ValueError):  # a file is gone, or this is no name
            if self.context.verify_mode == ssl.CERT_REQUIRED or _is_trusted(self.context, client_context(None), name):
                return None
            if _is_trusted(self.context, client_context(certfile), name):
                return fingerprint_of(ssl.PEM_cert_to_DER_cert(_first_certificate(certfile)))
        return None


def _first_certificate(path: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    with open(path) as file:
        return begin + file.read().partition(begin)[2].partition(end)[0] + end


def _is_trusted(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bool:
    """Whether a client that connects to a server called *name* trusts its certificate; tried in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_MAX_FLIGHTS):
        num_waiting = 0
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                num_waiting += 1
            except ssl.SSLError:
                return False
        if not num_waiting:
            return True
    return False


def peer_context(ca_file: str, certfile: str, keyfile: str) -> ssl.SSLContext:
    """Return the context for connections to other gateways of a cluster.

    Parameters
    ----------
    ca_file
        Path of the certificate authorities for their certificates; empty: the system's.
    certfile, keyfile
        This gateway's own certificate, which it shows them; empty: none.

    Raises
    ------
    ConfigError
        When a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if certfile:
            context.load_cert_chain(certfile, keyfile or None, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{ca_file or certfile} cannot be read as certificates ({_why(error)}).") from None
    return context


def _self_signed(certfile: str, keyfile: str | None) -> str:
    """Return a command that makes these files, for this machine's name."""
    name, files = socket.gethostname(), f"-keyout {quote(keyfile or certfile)} -out {quote(certfile)}"
    subject = f"-subj /CN={name} -addext subjectAltName=DNS:{name}"
    return f"openssl req -x509 -newkey rsa:3072 -nodes -days 365 {files} {subject}"


def _no_password() -> str:
    # OpenSSL would prompt on the terminal otherwise.
    raise ValueError("the key is encrypted with a password")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
