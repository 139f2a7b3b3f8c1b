"""The options of the commands that start an executor and a gateway of their own: ``--device`` and ``--capacity``."""

from __future__ import annotations

from typing import Any, ClassVar

from traitlets import TraitError, Unicode, validate

from sharedkernel.cli.base import CommandApp
from sharedkernel.errors import ConfigError
from sharedkernel.units import parse_bytes


class StackCommandApp(CommandApp):
    """Base of the commands that stand on a :class:`~sharedkernel.local_stack.LocalStack`."""

    aliases: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "device": "StackCommandApp.device",
        "capacity": "StackCommandApp.capacity",
    }

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
