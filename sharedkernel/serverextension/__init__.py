"""The name by which Jupyter's servers load our extension, in files that users have; it is `client/extension/`."""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell Jupyter's server what to load."""
    # Here, because who only asks for the package needs no Jupyter server.
    from sharedkernel.client.extension.extension import SharedKernelExtension

    return [{"module": "sharedkernel.serverextension", "app": SharedKernelExtension}]
