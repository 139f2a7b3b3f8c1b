"""The options by which a command finds its gateway: ``--gateway-url`` and ``--token``."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from traitlets import Unicode

from sharedkernel.cli.base import CommandApp
from sharedkernel.errors import ConfigError
from sharedkernel.gateway_client.credentials import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Credentials,
    find_credentials,
    find_kept,
)
from sharedkernel.jupyter.names import KERNEL_NAME


class GatewayCommandApp(CommandApp):
    """Base of the commands that ask a gateway."""

    aliases: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "gateway-url": "GatewayCommandApp.gateway_url",
        "token": "GatewayCommandApp.token",
    }

    gateway_url = Unicode(
        help=f"The gateway's address. Default: ${URL_VARIABLE}, else what `sharedkernel install` kept."
    ).tag(config=True)
    token = Unicode(help=f"Your token. Default: ${TOKEN_VARIABLE}, else what `sharedkernel install` kept.").tag(
        config=True
    )

    def credentials(self) -> Credentials:
        """Return the gateway and token from the options, the environment, or `sharedkernel install`, in that order.

        Raises
        ------
        ConfigError
            When there are none, or what is there cannot be used.
        """
        given = {URL_VARIABLE: self.gateway_url, TOKEN_VARIABLE: self.token}
        environment = os.environ | {name: value for name, value in given.items() if value}
        try:
            return find_credentials(KERNEL_NAME, environment)
        except ConfigError as error:
            if find_kept(KERNEL_NAME).exists() or all(environment.get(name) for name in given):
                raise
            # For the user of `sharedkernel lab` there is nothing to install.
            raise ConfigError(
                f"{error} Beside `sharedkernel lab` it works in a terminal of that JupyterLab (File, New, Terminal)."
            ) from None
