"""Options that several commands have: of those that ask a gateway, and of those that start services of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from traitlets import TraitError, Unicode, validate

from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.client.gateway.credentials import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Credentials,
    find_credentials,
    find_kept,
)
from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.units import parse_bytes

#: what stands for "no limit" on the line
NO_LIMIT = "none"
_LIMIT_TAGS = {"config": True, "is_limit": True}


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

    @staticmethod
    def show_notes(answer: Mapping[str, Any]) -> None:
        """Print what the gateway notes about a change that it has made, where something else may have been meant."""
        for note in answer.get("notes", ()):
            print(f"sharedkernel: note: {note}", file=sys.stderr)  # noqa: T201


class LimitCommandApp(GatewayCommandApp):
    """Base of the commands that set what users may use."""

    memory = Unicode(help='Memory on each device, such as "8GiB", or "25%" of it.').tag(**_LIMIT_TAGS)
    share = Unicode(help="Share of the device; 2 is twice the usual one.").tag(**_LIMIT_TAGS)
    sessions = Unicode(help="How many sessions at a time.").tag(**_LIMIT_TAGS)
    priority = Unicode(help="Larger is served first, under the policy `priority`.").tag(**_LIMIT_TAGS)
    offload_after = Unicode(
        help='How long idle memory stays on the device while others wait, such as "30s"; "never": always.'
    ).tag(**_LIMIT_TAGS)
    cull_after = Unicode(help='After how long an idle session is ended, such as "2h".').tag(**_LIMIT_TAGS)
    linger = Unicode(help='How long a session that was shut down can be brought back, such as "10m".').tag(
        **_LIMIT_TAGS
    )

    def limits(self) -> dict[str, Any]:
        """Return the limits on the line as the gateway takes them.

        Raises
        ------
        SystemExit
            With 2 when one has no value.
        """
        changes: dict[str, Any] = {}
        for name in self.trait_names(is_limit=True):
            value = getattr(self, name).strip()
            if name in self.config[type(self).__name__] and not value:
                # An empty variable in a script must not mean something else than it was to mean.
                fail(f"--{name.replace('_', '-')} has no value; see `{self._command_line} --help`.", status=2)
            if value:
                changes[name] = None if value == NO_LIMIT else _number(value)
        return changes


def _number(value: str) -> float | int | str:
    """Return *value* as a number if it is one; what else it may be is the gateway's to say."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


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
        return {"devices": [self.device], "capacity": self.capacity or None}
