"""``sharedkernel install``: puts the kernelspec where Jupyter looks, and keeps the gateway's address and token.

``sharedkernel uninstall`` removes both.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from getpass import getpass
from pathlib import Path

from jupyter_core.paths import jupyter_config_dir, jupyter_config_path
from traitlets import Bool, Unicode

from sharedkernel.cli.base import CommandApp, fail, say
from sharedkernel.client.connect import (
    check_gateway,
    disconnect,
    expected_certificate,
    install_kernelspecs,
    kept_ca_file,
)
from sharedkernel.client.gateway.connection import fetch
from sharedkernel.client.gateway.credentials import (
    CA_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Credentials,
    certificate_path,
    check_ca_file,
    check_token,
    check_url,
    credentials_path,
    load_credentials,
    store_credentials,
)
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.server import check_fingerprint
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.jupyter.names import DISPLAY_NAME, KERNEL_NAME
from sharedkernel.status.text import session_name

_NAME = re.compile(r"[A-Za-z0-9._-]+")


class InstallApp(CommandApp):
    """Installs the kernelspec."""

    name = "install"
    description = 'Add the kernel "Shared GPU (PyTorch)" to this Jupyter, beside the kernels that it has.'
    examples = f"""
        sharedkernel install --gateway-url https://gpu.example.org --token 3f1c…  # for you
        sharedkernel install --gateway-url https://gpu.example.org --sys-prefix  # asks for the token
        {TOKEN_VARIABLE}=3f1c… sharedkernel install --gateway-url https://gpu.example.org
        sharedkernel install --gateway-url https://gpu.example.org --sys-prefix --jupyterhub  # in an image
        sharedkernel install --gateway-url https://gpu.example.org --fingerprint 3A:1F:…  # its certificate is its own
    """

    gateway_url = Unicode(help=f"Address of the gateway, such as https://gpu.example.org. Default: ${URL_VARIABLE}.")
    token = Unicode(
        help="Your token for the gateway; -: the first line of standard input. Default: "
        f"${TOKEN_VARIABLE}, else you are asked for it."
    )
    ca_file = Unicode(
        help="File of the authorities that signed the gateway's certificate, if this system does not trust them. "
        f"Default: ${CA_VARIABLE}."
    ).tag(option="ca")
    fingerprint = Unicode(
        help="SHA-256 fingerprint of the gateway's certificate, in place of --ca: the certificate that the gateway "
        "shows is kept, and trusted, if it has this one."
    )
    user = Bool(False, help="Install for you alone (the default).")
    sys_prefix = Bool(False, help="Install into the Python environment that runs this command.")
    prefix = Unicode(help="Install into the environment at this path.")
    jupyterhub = Bool(
        False,
        help="Keep no token: each server of a JupyterHub shows this gateway its own. A token given all the same is "
        "shown it now, to learn which Python environments it has, and not kept.",
    )
    kernel_name = Unicode(KERNEL_NAME, help="Name of the kernelspec; one for each gateway you use.").tag(option="name")
    display_name = Unicode(DISPLAY_NAME, help="What a launcher shows.")

    def start(self) -> None:
        """Install.

        Raises
        ------
        SystemExit
            With 2 for wrong use, 1 for what could not be done.
        """
        try:
            credentials = self._read_options()
        except ConfigError as error:
            fail(str(error), status=2)
        certificate = warning = None
        environments: list[str] = []
        try:
            if self.fingerprint:
                certificate = expected_certificate(credentials.url, self.fingerprint)
            if credentials.token:
                environments = check_gateway(credentials, certificate)
        except (GatewayUnreachable, GatewayRefused) as error:
            if isinstance(error, GatewayRefused) or (self.fingerprint and certificate is None):
                fail(f"nothing was installed: {error}")
            warning = str(error)
            self._refuse_to_replace(credentials, warning)
        kept = self._kept_path()
        try:
            places = install_kernelspecs(
                environments, kernel_name=self.kernel_name, display_name=self.display_name, prefix=self.prefix or None
            )
            store_credentials(kept, credentials, certificate, for_hub=self.jupyterhub)
        except OSError as error:
            fail(f"cannot write {error.filename}: {error.strerror}; try --user, or another --prefix.")
        for shown, place in places.items():
            print(f'Installed the kernel "{shown}" in {place}')  # noqa: T201
        if self.jupyterhub:
            what = f"The gateway's address is kept in {kept}; each server of JupyterHub shows it a token of its own."
        else:
            what = f"The gateway's address and your token are kept in {kept}, readable by you only."
        print(what)  # noqa: T201
        if warning is not None:
            say(f"warning: {warning} It was installed all the same; the token was not checked.")

    def _refuse_to_replace(self, credentials: Credentials, why_not: str) -> None:
        """Exit if something else is kept, which may work: that the new address does cannot be seen now."""
        path = credentials_path(self.kernel_name)
        if self.jupyterhub or not path.exists():
            return
        with contextlib.suppress(ConfigError):
            if (kept := load_credentials(path)) != credentials:
                fail(
                    f"nothing was installed: {why_not} What {path} keeps for {kept.url} stays; remove that file if "
                    "this is to take its place unchecked."
                )

    def _read_options(self) -> Credentials:
        """Return the credentials to keep, once all options make sense.

        Raises
        ------
        ConfigError
            When one does not.
        """
        if sum((self.user, self.sys_prefix, bool(self.prefix))) > 1:
            raise ConfigError("--user, --sys-prefix and --prefix exclude each other; give one of them.")
        self.prefix = sys.prefix if self.sys_prefix else self.prefix
        if not _NAME.fullmatch(self.kernel_name):
            raise ConfigError(f"{self.kernel_name!r} cannot be a kernel's name; use letters, digits, '.', '_' and '-'.")
        url = self.gateway_url or os.environ.get(URL_VARIABLE)
        if not url:
            raise ConfigError(f"which gateway? Give its address with --gateway-url or in {URL_VARIABLE}.")
        url = check_url(url)
        if self.fingerprint:
            if self.ca_file:
                raise ConfigError("--fingerprint and --ca exclude each other; give one of them.")
            if not url.startswith("https:"):
                raise ConfigError(f"{url} is not encrypted, so it has no certificate; leave --fingerprint out.")
            self.fingerprint = check_fingerprint(self.fingerprint)
        token = self._read_token(url)
        if self.fingerprint:
            return Credentials(url=url, token=token, ca_file=str(certificate_path(self._kept_path())))
        ca_file = self.ca_file or os.environ.get(CA_VARIABLE) or kept_ca_file(url, self._kept_path())
        return Credentials(url=url, token=token, ca_file=check_ca_file(ca_file) if ca_file else None)

    def _kept_path(self) -> Path:
        """Return the file in which the address and the token are kept."""
        return credentials_path(self.kernel_name, self._config_folder() if self.jupyterhub else None)

    def _read_token(self, url: str) -> str:
        """Return the token; "": none is needed.

        Raises
        ------
        ConfigError
            When there is none, or a hub's servers would not find what is kept without one.
        """
        token = sys.stdin.readline().strip() if self.token == "-" else self.token or os.environ.get(TOKEN_VARIABLE)
        if self.jupyterhub and str(self._config_folder()) not in jupyter_config_path():
            raise ConfigError(
                f"Jupyter does not look in {self._config_folder()}, see `jupyter --paths`; use --sys-prefix."
            )
        if not token and not self.jupyterhub and sys.stdin.isatty():
            with contextlib.suppress(EOFError):  # nothing was typed
                token = getpass(f"Your token for {url}: ")
        if not token and not self.jupyterhub:
            raise ConfigError(
                f"which token? Give it with --token (`-`: the first line of standard input) or in {TOKEN_VARIABLE}; "
                "the gateway's admin has one; or --jupyterhub, if each server of a hub has its own."
            )
        return check_token(token) if token else ""

    def _config_folder(self) -> Path:
        """Return Jupyter's configuration folder beside the kernelspec."""
        return Path(self.prefix).absolute() / "etc" / "jupyter" if self.prefix else Path(jupyter_config_dir())


class UninstallApp(CommandApp):
    """Removes what :class:`InstallApp` has added."""

    name = "uninstall"
    description = """
        Remove the kernel "Shared GPU (PyTorch)" from this Jupyter, and the gateway's address and your token.

        The package stays: `pip uninstall jupyter-sharedkernel` removes it.
    """
    examples = """
        sharedkernel uninstall
        sharedkernel uninstall --name big-gpu
    """

    kernel_name = Unicode(KERNEL_NAME, help="Name of the kernelspec, as `sharedkernel install` was told.").tag(
        option="name"
    )
    force = Bool(False, help="Remove it though you have sessions there; they continue without it.")

    def start(self) -> None:
        """Remove it, unless there are sessions of the user.

        Raises
        ------
        SystemExit
            With 1 when it could not be done.
        """
        if not self.force:
            self._refuse_with_sessions()
        try:
            removed = disconnect(self.kernel_name)
        except OSError as error:
            fail(f"cannot remove {error.filename}: {error.strerror}.")
        if not removed:
            fail(f"there is no kernel {self.kernel_name!r} here that `sharedkernel install` has added.")
        for path in removed:
            print(f"Removed {path}")  # noqa: T201

    def _refuse_with_sessions(self) -> None:
        """Exit if the user has sessions at the gateway; none could be reached or ended from here afterwards."""
        try:
            credentials = load_credentials(credentials_path(self.kernel_name))
        except ConfigError:
            return
        try:
            user = fetch(credentials, "/api/me")["identity"]["username"]
            sessions = fetch_status(credentials, about=user).sessions
        except SharedKernelError as error:
            say(f"warning: {error} If you have sessions there, they continue.")
            return
        if own := [session for session in sessions if session.user == user and not session.lingering]:
            fail(
                f"nothing was removed: you have sessions there ({', '.join(map(session_name, own))}); shut them down "
                f"with `sharedkernel stop --user {user}`, or add --force and let them continue."
            )
