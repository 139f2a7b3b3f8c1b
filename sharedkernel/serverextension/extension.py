"""Adds the routes to the user's Jupyter server, and takes the connection to the gateway down with it."""

from __future__ import annotations

from functools import partial
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from traitlets import Bool, Unicode

from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.serverextension.direct_connection import SETTING, DirectWebsocketConnection
from sharedkernel.serverextension.direct_kernels import DirectKernels
from sharedkernel.serverextension.follower import Follower
from sharedkernel.serverextension.handlers import (
    CellsHandler,
    EventsHandler,
    SessionHandler,
    SettingsHandler,
    TimelineQueryHandler,
)
from sharedkernel.serverextension.local_kernels import LocalKernels
from sharedkernel.serverextension.recorder import Recorder
from sharedkernel.serverextension.upstream import find_upstream

_SESSION = r"/sharedkernel/api/sessions/(?P<session>[\w-]+)"


class SharedKernelExtension(ExtensionApp):
    """Shows this server's pages the shared device."""

    # Not the package's name: the gateway's configuration file is called by that.
    name = "sharedkernel_pages"

    kernel_name = Unicode(
        KERNEL_NAME,
        help="Kernelspec whose gateway the pages show; one that `sharedkernel install` wrote. "
        "With --gateway-url it is that gateway, whatever stands here.",
    ).tag(config=True)

    direct = Bool(
        True,
        help="Whether pages are connected to their sessions by this server, and not by the relay that is their kernel: "
        "a cell is back sooner. Kernels that are no relays are never concerned.",
    ).tag(config=True)

    def initialize_settings(self) -> None:
        """Make what the routes share."""
        server: Any = self.serverapp
        self._find_upstream = partial(find_upstream, self.kernel_name)
        self._local_kernels = LocalKernels(server.kernel_manager, server.session_manager)
        self._follower = Follower(self._find_upstream, self._local_kernels)
        self._recorder = Recorder(server.kernel_manager, server.event_logger)
        self._direct_kernels = DirectKernels(server.kernel_manager, self._recorder, server.event_logger)
        if self.direct:
            self._connect_directly(server)

    def _connect_directly(self, server: Any) -> None:
        """Have pages connect by a class that knows the direct way, unless the site has chosen a class of its own."""
        chosen = server.kernel_websocket_connection_class
        if chosen is not ZMQChannelsWebsocketConnection:
            if not GatewayClient.instance().gateway_enabled:
                self.log.warning("pages go by the relay: this server's connections are of %s.", chosen.__name__)
            return
        server.kernel_websocket_connection_class = DirectWebsocketConnection
        # The server has copied it by now.
        self.settings |= {
            "kernel_websocket_connection_class": DirectWebsocketConnection,
            SETTING: self._direct_kernels,
        }

    def initialize_handlers(self) -> None:
        """Add the routes."""
        passing_on = {"find_upstream": self._find_upstream, "local_kernels": self._local_kernels}
        self.handlers.extend(
            [
                (r"/sharedkernel/api/events", EventsHandler, {"follower": self._follower}),
                (r"/sharedkernel/api/(?P<name>quotas|policy)", SettingsHandler, passing_on),
                (r"/sharedkernel/api/timeline", TimelineQueryHandler, passing_on),
                (_SESSION, SessionHandler, passing_on),
                (r"/sharedkernel/api/kernels/(?P<kernel_id>[\w-]+)/cells", CellsHandler, {"recorder": self._recorder}),
                (rf"{_SESSION}/(?P<action>offload|attach|ask-for-room|interrupt)", SessionHandler, passing_on),
            ]
        )

    async def stop_extension(self) -> None:
        """Close the connections to the gateway and the kernels."""
        self._direct_kernels.close()
        self._recorder.close()
        await self._follower.close()
