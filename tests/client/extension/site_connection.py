"""A site's own kind of connection between pages and kernels."""

from __future__ import annotations

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class SiteConnection(ZMQChannelsWebsocketConnection):
    """Jupyter's own under another name."""
