"""Options that several commands have: of those that ask a gateway, and of those that start services of their own."""

from __future__ import annotations

import os
from typing import Any

from traitlets import TraitError, Unicode, validate

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
from sharedkernel.units import parse_bytes


class GatewayCommandApp(CommandApp):
    """Base of the commands that ask a gateway."""

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


class StackCommandApp(CommandApp):
    """Base of the commands that stand on a :class:`~sharedkernel.local_stack.LocalStack`."""

    device = Unicode("host", help="The device to share: `host`, the processor.").tag(config=True)
    capacity = Unicode(
        "4GiB", help='How much of the device\'s memory to share, such as "8GiB"; empty: what the device has.'
    ).tag(config=True)

    @validate("capacity")
    def _check_capacity(self, proposal: Any) -> str:
        capacity: str = proposal["value"]
        try:
            if capacity:
                parse_bytes(capacity)
        except ConfigError as error:
            raise TraitError(f"--capacity: {error}") from None
        return capacity

    def stack_options(self) -> dict[str, Any]:
        """Return the options as :class:`~sharedkernel.local_stack.LocalStack` takes them."""
        return {"device": self.device, "capacity": self.capacity or None}
