"""When a Jupyter client can be used.

jupyter_client's own `wait_for_ready` sees that nothing more comes by waiting a fifth of a second, and another for a
heartbeat. Here what is read last is the end of what was asked last.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient

#: seconds after which the kernel is asked again, as it may not have been heard when it answered; twice as many each
#: time, as one that is slow would never have answered the last question
_AGAIN = 1.0


async def wait_until_ready(client: AsyncKernelClient, timeout: float) -> None:
    """Return once the kernel answers *client* and is heard, and nothing that was asked before is left."""
    deadline, patience = time.monotonic() + timeout, _AGAIN
    while time.monotonic() < deadline:
        request = client.kernel_info()
        with contextlib.suppress(Empty):
            while not _is_idle(message := await client.get_iopub_msg(timeout=patience), request):
                if message["msg_type"] == "iopub_welcome":  # it is heard from now on, and what it said before was not
                    request = client.kernel_info()
            while not _answers(await client.get_shell_msg(timeout=patience), request):
                pass
            return
        patience *= 2
    raise AssertionError(f"no kernel answered within {timeout:g} s")


def wait_until_blocking_ready(
    client: Any,
    timeout: float,
    is_alive: Callable[[], bool] = lambda: True,
    on_message: Callable[[dict[str, Any]], None] = lambda message: None,
) -> None:
    """As :func:`wait_until_ready`, with a blocking client or one like it.

    *on_message* is called with each message that is read meanwhile.

    Raises
    ------
    RuntimeError
        When the kernel has ended, as *is_alive* says.
    """

    def read(get: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        message = get(timeout=patience)
        on_message(message)
        return message

    deadline, patience = time.monotonic() + timeout, _AGAIN
    while time.monotonic() < deadline:
        if not is_alive():
            raise RuntimeError("the kernel ended before it answered")
        request = client.kernel_info()
        with contextlib.suppress(Empty):
            while not _is_idle(message := read(client.get_iopub_msg), request):
                if message["msg_type"] == "iopub_welcome":
                    request = client.kernel_info()
            while not _answers(read(client.get_shell_msg), request):
                pass
            return
        patience *= 2
    raise AssertionError(f"no kernel answered within {timeout:g} s")


def _is_idle(message: dict[str, Any], request: str) -> bool:
    is_status = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
    return is_status and _answers(message, request)


def _answers(message: dict[str, Any], request: str) -> bool:
    return bool(message["parent_header"].get("msg_id") == request)
