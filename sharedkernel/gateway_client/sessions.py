"""What a user does to sessions through the gateway: end them, and move their memory off the device.

The commands and `top` share it. Each function blocks until the gateway has answered.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from sharedkernel.gateway_client.connection import SESSIONS_PATH, fetch
from sharedkernel.gateway_client.credentials import Credentials

#: seconds that ending or offloading a session may take
_PATIENCE = 60.0


def stop_session(credentials: Credentials, kernel_id: str, *, now: bool = False) -> None:
    """Shut a session down.

    Parameters
    ----------
    credentials
        The gateway and the token.
    kernel_id
        The session's.
    now
        Whether it ends for good; else it can be brought back for as long as its user's quota lets it linger.

    Raises
    ------
    GatewayRefused, GatewayUnreachable
        As for `fetch`.
    """
    path = f"/api/kernels/{quote(kernel_id, safe='')}{'?linger=0' if now else ''}"
    fetch(credentials, path, method="DELETE", timeout=_PATIENCE)


def offload_session(credentials: Credentials, kernel_id: str) -> None:
    """Move an idle session's memory off the device; its next cell brings it back.

    Parameters
    ----------
    credentials
        The gateway and the token.
    kernel_id
        The session's.

    Raises
    ------
    GatewayRefused, GatewayUnreachable
        As for `fetch`.
    """
    path = f"{SESSIONS_PATH}/{quote(kernel_id, safe='')}/offload"
    fetch(credentials, path, method="POST", body=json.dumps({}), timeout=_PATIENCE)
