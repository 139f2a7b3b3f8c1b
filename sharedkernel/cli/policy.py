"""``sharedkernel policy``: by which policy the devices serve, and changing it."""

from __future__ import annotations

import json

from traitlets import Bool

from sharedkernel.cli.base import fail
from sharedkernel.cli.options import GatewayCommandApp
from sharedkernel.client.gateway.connection import POLICY_PATH, fetch
from sharedkernel.status.text import safe_text

#: seconds that an answer may take: an executor that hangs is waited for by the gateway
_PATIENCE = 20.0


class PolicyApp(GatewayCommandApp):
    """Shows the policy, and changes it for an admin."""

    name = "policy"
    description = """
        Show by which policy the devices serve those who wait, or, for an admin, change it.

        A change is in force at once, and until an executor restarts or the gateway reads its configuration again.
    """
    examples = """
        sharedkernel policy
        sharedkernel policy srtf        # for admins
    """
    accepts_arguments = True

    as_json = Bool(False, help="Print JSON instead of text.").tag(config=True, option="json")

    def start(self) -> None:
        """Show or change it.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer, or refuses.
        """
        if len(self.extra_args) > 1:
            fail(f"{self.extra_args[1]!r} is not understood; name one policy.", status=2)
        if self.extra_args:
            body = json.dumps({"policy": self.extra_args[0]})
            answer = fetch(self.credentials(), POLICY_PATH, method="PUT", body=body, timeout=_PATIENCE)
        else:
            answer = fetch(self.credentials(), POLICY_PATH, timeout=_PATIENCE)
        if self.as_json:
            print(json.dumps(answer))  # noqa: T201
            return
        for device, policy in answer["devices"].items():
            print(f"{safe_text(device) or 'policy'}: {safe_text(policy)}")  # noqa: T201
        print(f"policies: {', '.join(map(safe_text, answer['policies']))}")  # noqa: T201
        self.show_notes(answer)
