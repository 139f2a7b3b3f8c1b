"""Adds the routes to the user's Jupyter server, and takes the connection to the gateway down with it."""

from __future__ import annotations

from functools import partial
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from traitlets import Unicode

from sharedkernel.client.extension.connect_handler import ConnectHandler
from sharedkernel.client.extension.follower import Follower, LocalKernels
from sharedkernel.client.extension.handlers import (
    CellsHandler,
    EventsHandler,
    ForwardsHandler,
    QuestionHandler,
    SessionHandler,
)
from sharedkernel.client.extension.recorder import RECORDER, PageConnection, Recorder
from sharedkernel.client.extension.upstream import find_upstream
from sharedkernel.client.extension.user_server import (
    CopiesHandler,
    DriveHandler,
    LocalFileHandler,
    TerminalHandler,
    name_folders,
)
from sharedkernel.client.ports import PortForwards
from sharedkernel.jupyter.names import KERNEL_NAME

_ACTIONS = "offload|end-programs|attach|ask-for-room|interrupt"
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

    def initialize_settings(self) -> None:
        """Make what the routes share."""
        server: Any = self.serverapp
        self._find_upstream = partial(find_upstream, self.kernel_name)
        self._local_kernels = LocalKernels(server.kernel_manager, server.session_manager)
        self._follower = Follower(self._find_upstream, self._local_kernels)
        self._recorder = Recorder(server.kernel_manager, server.event_logger)
        self._forwards = PortForwards(self.log.warning)
        name_folders(server.session_manager)
        self._connect_pages(server)

    def _connect_pages(self, server: Any) -> None:
        """Have pages connect by a class that knows relays, unless the site has chosen a class of its own."""
        chosen = server.kernel_websocket_connection_class
        if chosen is not ZMQChannelsWebsocketConnection:
            if not GatewayClient.instance().gateway_enabled:
                self.log.warning(
                    "this server's connections are of %s: a page is told that its kernel has died when only the relay "
                    "has, and shows no widgets after it is loaded again while a cell runs.",
                    chosen.__name__,
                )
            return
        server.kernel_websocket_connection_class = PageConnection
        # The server has copied it by now.
        self.settings |= {"kernel_websocket_connection_class": PageConnection, RECORDER: self._recorder}

    def initialize_handlers(self) -> None:
        """Add the routes."""
        finding = {"find_upstream": self._find_upstream}
        passing_on = {**finding, "local_kernels": self._local_kernels}
        connecting = {"kernel_name": self.kernel_name, "on_changed": self._begin_anew}
        self.handlers.extend(
            [
                (r"/sharedkernel/api/events", EventsHandler, {"follower": self._follower}),
                (r"/sharedkernel/api/gateway", ConnectHandler, connecting),
                (r"/sharedkernel/api/(?P<name>quotas|policy|timeline)", QuestionHandler, passing_on),
                (r"/sharedkernel/api/ports", ForwardsHandler, {**passing_on, "forwards": self._forwards}),
                (r"/sharedkernel/api/host/(?:api/contents|api/terminals|files)(?:/.*)?", DriveHandler, passing_on),
                (r"/sharedkernel/api/host/terminals/websocket/(\w+)", TerminalHandler, finding),
                (r"/sharedkernel/api/local-file", LocalFileHandler, passing_on),
                (r"/sharedkernel/api/copies", CopiesHandler, passing_on),
                (_SESSION, SessionHandler, passing_on),
                (r"/sharedkernel/api/kernels/(?P<kernel_id>[\w-]+)/cells", CellsHandler, {"recorder": self._recorder}),
                (rf"{_SESSION}/(?P<action>{_ACTIONS})", SessionHandler, passing_on),
            ]
        )

    async def _begin_anew(self) -> None:
        """Use nothing any more of the gateway that this server had."""
        self._follower.begin_anew()
        await self._forwards.close()

    async def stop_extension(self) -> None:
        """Close the connections to the gateway and the kernels."""
        self._recorder.close()
        await self._forwards.close()
        await self._follower.close()
