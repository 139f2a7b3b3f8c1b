"""Connect a user's Jupyter to a gateway: check address and token, add kernels, keep what a relay needs; and undo it.

The commands `sharedkernel install` and `uninstall` and JupyterLab's panel all do it by these functions. A kernelspec
names `sharedkernel.relay`, as those of every version do: a folder of Jupyter keeps one for years.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import ssl
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

from jupyter_client.kernelspec import KernelSpecManager

from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.credentials import Credentials, certificate_path, find_kept, load_credentials
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.server import USUAL_TIMEOUTS, Server, fingerprint_of
from sharedkernel.client.relay import start
from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import DISPLAY_NAME, KERNEL_NAME, LOGOS

#: runs a module, but listens first; "{resource_dir}" is the kernelspec's folder, where a copy of the file is
_START = ("-P", "-S", "{resource_dir}/start.py")
_RELAY = "sharedkernel.relay"


def shown_certificate(url: str) -> tuple[str, str]:
    """Return the certificate (PEM) that an encrypted gateway presents, and its fingerprint; no token is shown.

    Who signed it is not checked.

    Raises
    ------
    GatewayUnreachable
        When there is none.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with Server(url, lambda: context).connect_encrypted(USUAL_TIMEOUTS.connect) as encrypted:
            certificate = cast("ssl.SSLSocket", encrypted).getpeercert(binary_form=True) or b""
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
    short = "Shared GPU" if display_name == DISPLAY_NAME else display_name
    for environment in ("", *environments):
        shown = f"{short} ({environment})" if environment else display_name
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


def disconnect(kernel_name: str) -> list[Path]:
    """Remove a gateway's kernels, its address, its own certificate and the token; kernels that run go on.

    Parameters
    ----------
    kernel_name
        Of the kernelspec for the gateway's usual Python.

    Returns
    -------
    list
        What was there and is removed.

    Raises
    ------
    OSError
        When something cannot be removed; what comes after it stays.
    """
    removed: list[Path] = []
    # Jupyter shows the first of each name; an environment's comes up once the user's own is gone.
    while found := [
        Path(place) for place in KernelSpecManager().find_kernel_specs().values() if _is_of(Path(place), kernel_name)
    ]:
        for place in found:
            shutil.rmtree(place)
        removed += found
    while (path := find_kept(kernel_name)).is_file():
        path.unlink()
        removed.append(path)
        with contextlib.suppress(FileNotFoundError):
            certificate_path(path).unlink()
            removed.append(certificate_path(path))
    return removed


def write_kernelspec(
    directory: Path, *, name: str = KERNEL_NAME, display_name: str = DISPLAY_NAME, environment: str = ""
) -> None:
    """Write a kernelspec that starts a relay.

    It holds no address and no token: those come from the environment or from what `sharedkernel install` keeps.

    Parameters
    ----------
    directory
        Where its files go, such as ``share/jupyter/kernels/shared-gpu``; created where missing.
    name
        Its name; says which kept address and token the relay uses.
    display_name
        What a launcher shows.
    environment
        The gateway's Python environment that sessions get; empty: its usual one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    named = [] if name == KERNEL_NAME else ["--name", name]
    named += ["--environment", environment] if environment else []
    spec = {
        "argv": [sys.executable, *_START, _RELAY, "-f", "{connection_file}", *named],
        "display_name": display_name,
        "language": "python",
        # By message, not by signal: it reaches the session in order with what the client sent before it, from any
        # operating system.
        "interrupt_mode": "message",
        "metadata": {"debugger": False},
    }
    (directory / "start.py").write_bytes(Path(start.__file__).read_bytes())
    (directory / "kernel.json").write_text(json.dumps(spec, indent=2) + "\n")
    for logo in LOGOS.iterdir():
        (directory / logo.name).write_bytes(logo.read_bytes())


def _is_of(directory: Path, name: str) -> bool:
    """Return whether a kernelspec starts relays to the gateway that is kept under *name*."""
    try:
        argv = json.loads((directory / "kernel.json").read_text())["argv"]
        kept = argv[argv.index("--name") + 1] if "--name" in argv else KERNEL_NAME
        return _RELAY in argv and kept == name
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False
