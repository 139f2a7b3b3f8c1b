"""The address of the gateway and the token: from the environment, or from the file that `sharedkernel install` wrote.

The file belongs to one kernelspec, lies in the user's Jupyter configuration folder and is readable by that user only.
In an image for JupyterHub's servers it lies in the environment's folder, is everybody's to read, and holds no token:
each server has its own from the hub, and shows it to the gateway of that file alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from sharedkernel.errors import ConfigError
from sharedkernel.system.atomic_file import replace_file

URL_VARIABLE = "SHAREDKERNEL_GATEWAY_URL"
TOKEN_VARIABLE = "SHAREDKERNEL_TOKEN"
CA_VARIABLE = "SHAREDKERNEL_CA_FILE"
#: in which a hub gives a server its own token
HUB_TOKEN_VARIABLE = "JUPYTERHUB_API_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A gateway and the token to show it."""

    #: without a slash at its end
    url: str
    #: in a kept file, "": each server's own
    token: str = field(repr=False)
    #: path of what is trusted (PEM): authorities, or the gateway's own certificate; None: what this system trusts
    ca_file: str | None = None


def check_url(url: str) -> str:
    """Return a gateway's address in its plain form.

    Raises
    ------
    ConfigError
        When it is none.
    """
    hint = "write it like https://gpu.example.org or http://127.0.0.1:8585"
    try:
        parts = urlsplit(url.strip())
        _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a gateway's address ({error}); {hint}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is not a gateway's address; {hint}.")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(f"{url!r} holds more than a gateway's address; {hint}, without a token.")
    return parts.geturl().rstrip("/")


def check_token(token: str) -> str:
    """Return a token without the white space around it.

    Raises
    ------
    ConfigError
        When it cannot be one.
    """
    token = token.strip()
    if not token or not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError("the token is empty or holds characters that no token has; copy it again, whole.")
    return token


def check_ca_file(path: str) -> str:
    """Return the absolute path of a file of certificates.

    Raises
    ------
    ConfigError
        When it is none.
    """
    # Not at the top: few relays need it.
    import ssl

    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path!r} cannot be read as certificates in PEM ({why}); check --ca.") from None
    return os.path.abspath(path)


def credentials_path(name: str) -> Path:
    """Return where the credentials of kernelspec *name* are kept."""
    # Not at the top: a relay that finds everything in its environment need not load it.
    from jupyter_core.paths import jupyter_config_dir

    return Path(jupyter_config_dir()) / "sharedkernel" / f"{name}.json"


def hub_gateway_path(name: str, folder: Path) -> Path:
    """Return where the gateway of kernelspec *name* is kept for a hub's servers, in a *folder* of configuration."""
    return folder / "sharedkernel" / f"{name}.json"


def find_kept(name: str) -> Path:
    """Return the file of kernelspec *name*'s credentials: the user's, else an environment's; the user's if none is."""
    from jupyter_core.paths import jupyter_config_path

    own = credentials_path(name)
    places = [own, *(Path(folder) / own.parent.name / own.name for folder in jupyter_config_path())]
    return next(filter(os.path.isfile, places), own)


def find_credentials(name: str, environment: Mapping[str, str] = os.environ) -> Credentials:
    """Return the gateway and the token to use; a variable overrides the stored value.

    Parameters
    ----------
    name
        Of the kernelspec that they belong to.
    environment
        The process's variables.

    Raises
    ------
    ConfigError
        When there are none, or what is there cannot be used.
    """
    url, token = environment.get(URL_VARIABLE), environment.get(TOKEN_VARIABLE)
    ca_file = environment.get(CA_VARIABLE)
    if not (url and token):
        kept = load_credentials(find_kept(name))
        url, ca_file = url or kept.url, ca_file or kept.ca_file
        token = token or kept.token or _hub_token(kept.url, url, environment)
    ca_file = check_ca_file(ca_file) if ca_file else None
    return Credentials(url=check_url(url), token=check_token(token), ca_file=ca_file)


def _hub_token(configured: str, url: str, environment: Mapping[str, str]) -> str:
    """Return the token that a hub gave to this server, if *url* is the gateway that was *configured* to see it.

    Raises
    ------
    ConfigError
        When it is another one, or there is no such token.
    """
    if check_url(url) != configured:
        raise ConfigError(f"JupyterHub's tokens are for {configured} alone; for {url}, set {TOKEN_VARIABLE}, too.")
    token = environment.get(HUB_TOKEN_VARIABLE)
    if not token:
        raise ConfigError(
            f"this kernel is for servers of JupyterHub, and {HUB_TOKEN_VARIABLE} is not set; set {TOKEN_VARIABLE} to a "
            "token of yours."
        )
    return token


def certificate_path(credentials: Path) -> Path:
    """Return where a gateway's own certificate is kept, beside the file of its *credentials*."""
    return credentials.with_suffix(".pem")


def store_credentials(name: str, credentials: Credentials, certificate: str | None = None) -> Path:
    """Write credentials to a file that only this user can read, and return its path.

    Parameters
    ----------
    name
        Of the kernelspec that they belong to.
    credentials
        The gateway and the token.
    certificate
        The gateway's own (PEM), to be kept at :func:`certificate_path`; None: there is none.
    """
    path = credentials_path(name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _store_certificate(path, credentials, certificate, mode=0o600)
    return _store(path, {"gateway_url": credentials.url, "token": credentials.token}, credentials.ca_file, mode=0o600)


def store_hub_gateway(name: str, credentials: Credentials, folder: Path, certificate: str | None = None) -> Path:
    """Write which gateway is shown the tokens of a hub's servers, readable by everybody, and return where.

    Parameters
    ----------
    name
        Of the kernelspec.
    credentials
        Their token is not written.
    folder
        Of Jupyter's configuration.
    certificate
        As for :func:`store_credentials`.
    """
    path = hub_gateway_path(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    _store_certificate(path, credentials, certificate, mode=0o644)
    kept = {"gateway_url": credentials.url, "token_from": HUB_TOKEN_VARIABLE}
    return _store(path, kept, credentials.ca_file, mode=0o644)


def _store_certificate(path: Path, credentials: Credentials, certificate: str | None, *, mode: int) -> None:
    """Write the gateway's own certificate beside its credentials at *path*, or remove an earlier one."""
    own = certificate_path(path)
    if certificate is not None:
        replace_file(own, certificate, mode=mode, durable=False)
    elif credentials.ca_file != str(own):
        own.unlink(missing_ok=True)


def _store(path: Path, kept: dict[str, str], ca_file: str | None, *, mode: int) -> Path:
    if ca_file is not None:
        kept["ca_file"] = ca_file
    replace_file(path, json.dumps(kept, indent=2) + "\n", mode=mode, durable=False)
    return path


def load_credentials(path: Path) -> Credentials:
    """Return what is kept in a file.

    Raises
    ------
    ConfigError
        When there is no such file, or it cannot be read.
    """
    remedy = "run `sharedkernel install --gateway-url URL --token TOKEN`"
    try:
        stored = json.loads(path.read_text())
        ca_file = stored.get("ca_file")
        is_hubs = stored.get("token_from") == HUB_TOKEN_VARIABLE
        return Credentials(
            url=str(stored["gateway_url"]),
            token="" if is_hubs else str(stored["token"]),
            ca_file=None if ca_file is None else str(ca_file),
        )
    except FileNotFoundError:
        raise ConfigError(f"this computer knows no gateway yet; {remedy} and try again.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); {remedy} to write it anew.") from None
