"""Defaults of Jupyter's server that differ for a gateway: it serves kernels alone, and users by their tokens."""

from __future__ import annotations

import os

from traitlets import Integer, default

from sharedkernel.gateway.auth.authorizer import OwnerAuthorizer
from sharedkernel.gateway.auth.hub import HubUsers
from sharedkernel.gateway.auth.identity import SingleUser, TokenUsers
from sharedkernel.gateway.channels.websocket import SessionWebsocket
from sharedkernel.gateway.config.options import GatewayOptions
from sharedkernel.gateway.config.settings import CONFIG_NAME
from sharedkernel.gateway.kernels.kernelspecs import NoContents, SharedKernelSpecs
from sharedkernel.gateway.kernels.manager import SessionKernels
from sharedkernel.gateway.kernels.notebook_sessions import OwnNotebookSessions

DEFAULT_PORT = 8585
#: identity provider for each value of the option `identity`
_IDENTITIES = {"single": SingleUser, "tokens": TokenUsers, "jupyterhub": HubUsers}


class JupyterDefaults(GatewayOptions):
    """Default values of Jupyter's own traits; goes before Jupyter's server in the bases."""

    #: bounded, unlike Jupyter's: the system takes what exceeds 16 bits off, and serves another port
    port = Integer(min=0, max=65535, help="Port to listen on; 0: any that is free.").tag(config=True)

    @default("config_file_name")
    def _default_config_file_name(self) -> str:
        return CONFIG_NAME

    @default("cookie_secret")
    def _default_cookie_secret(self) -> bytes:
        return os.urandom(32)  # cookies identify nobody, so none has to outlive this process

    @default("allow_remote_access")
    def _default_allow_remote(self) -> bool:
        return False

    @default("ip")
    def _default_ip(self) -> str:
        return "127.0.0.1"

    @default("port")
    def _port_default(self) -> int:
        return DEFAULT_PORT

    @default("port_retries")
    def _port_retries_default(self) -> int:
        return 0  # users have stored this gateway's address

    @default("kernel_manager_class")
    def _default_kernel_manager_class(self) -> type | str:
        return "sharedkernel.gateway.hosts.kernels.FrontKernels" if self.front else SessionKernels

    @default("session_manager_class")
    def _default_session_manager_class(self) -> type:
        return OwnNotebookSessions

    @default("kernel_websocket_connection_class")
    def _default_kernel_websocket_connection_class(self) -> type:
        return SessionWebsocket

    @default("kernel_spec_manager_class")
    def _default_kernel_spec_manager_class(self) -> type:
        return SharedKernelSpecs

    @default("contents_manager_class")
    def _default_contents_manager_class(self) -> type:
        return NoContents

    @default("authorizer_class")
    def _default_authorizer_class(self) -> type:
        return OwnerAuthorizer

    @default("identity_provider_class")
    def _default_identity_provider_class(self) -> type:
        return _IDENTITIES[self.identity]
