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


def credentials_path(name: str, folder: Path | None = None) -> Path:
    """Return where the credentials of kernelspec *name* are kept.

    Parameters
    ----------
    name
        Of the kernelspec.
    folder
        Of Jupyter's configuration; None: the user's.
    """
    if folder is None:
        # Not at the top: a relay that finds everything in its environment need not load it.
        from jupyter_core.paths import jupyter_config_dir

        folder = Path(jupyter_config_dir())
    return folder / "sharedkernel" / f"{name}.json"


def find_kept(name: str) -> Path:
    """Return the file of kernelspec *name*'s credentials: the user's, else an environment's; the user's if none is."""
    from jupyter_core.paths import jupyter_config_path

    own = credentials_path(name)
    places = (credentials_path(name, Path(folder)) for folder in jupyter_config_path())
    return next(filter(os.path.isfile, (own, *places)), own)


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


def store_credentials(
    path: Path, credentials: Credentials, certificate: str | None = None, *, for_hub: bool = False
) -> None:
    """Write credentials to a file that only this user can read.

    Parameters
    ----------
    path
        Of the file, see :func:`credentials_path`.
    credentials
        The gateway and the token.
    certificate
        The gateway's own (PEM), to be kept at :func:`certificate_path`; None: there is none, and an earlier one goes.
    for_hub
        Whether the gateway is shown the tokens of a hub's servers: everybody can read the file, which has no token.
    """
    mode = 0o644 if for_hub else 0o600
    path.parent.mkdir(mode=0o777 if for_hub else 0o700, parents=True, exist_ok=True)
    own = certificate_path(path)
    if certificate is not None:
        replace_file(own, certificate, mode=mode, durable=False)
    elif credentials.ca_file != str(own):
        own.unlink(missing_ok=True)
    kept = {"gateway_url": credentials.url}
    kept |= {"token_from": HUB_TOKEN_VARIABLE} if for_hub else {"token": credentials.token}
    if credentials.ca_file is not None:
        kept["ca_file"] = credentials.ca_file
    replace_file(path, json.dumps(kept, indent=2) + "\n", mode=mode, durable=False)


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
