"""Defaults of Jupyter's server that differ for a gateway: it serves kernels alone, and users by their tokens.

The kernelspecs that it offers are in no file, so nothing else can be started.
"""

from __future__ import annotations

import os
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_server.auth import Authorizer, User
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.services.contents.manager import AsyncContentsManager
from traitlets import Integer, default

from sharedkernel.gateway.auth.hub import HubUsers
from sharedkernel.gateway.auth.identity import GatewayUser, SingleUser, TokenUsers
from sharedkernel.gateway.channels.websocket import SessionWebsocket
from sharedkernel.gateway.config.options import GatewayOptions
from sharedkernel.gateway.config.settings import CONFIG_NAME
from sharedkernel.gateway.kernels.manager import SessionKernels
from sharedkernel.gateway.kernels.notebook_sessions import OwnNotebookSessions
from sharedkernel.jupyter.names import DISPLAY_NAME, LOGOS, environment_of, kernel_of

DEFAULT_PORT = 8585
#: identity provider for each value of the option `identity`
_IDENTITIES = {"single": SingleUser, "tokens": TokenUsers, "jupyterhub": HubUsers}


class OwnerAuthorizer(Authorizer):
    """Lets users act on their own kernels and sessions, admins on all; a kernel of another user is not there (404).

    Kernel ids are no secrets, since the status lists all sessions.
    """

    async def is_authorized(self, handler: JupyterHandler, user: User, action: str, resource: str) -> bool:
        """Return True, unless the request names a kernel of another user, in its route or its body.

        One that names a session which is starting waits until that is over: status lists it already. The manager of
        notebook sessions (``/api/sessions``) checks their owners itself.

        Parameters
        ----------
        handler
            Handles the request.
        user
            The user of the request.
        action, resource
            What Jupyter's handlers declare; only the resource "sessions" matters here.

        Raises
        ------
        HTTPError
            404, the same as for a kernel that does not exist.
        """
        if not isinstance(user, GatewayUser):
            return False
        named = handler.path_kwargs.get("kernel_id")
        if resource == "sessions" and handler.request.method in ("POST", "PATCH"):
            body = handler.get_json_body()
            kernel = body.get("kernel") if isinstance(body, dict) else None
            named = kernel.get("id") if isinstance(kernel, dict) else None
        if named is not None:
            await handler.kernel_manager.registry.settled(named)  # type: ignore[attr-defined]
            handler.kernel_manager.check_visible(named, user)  # type: ignore[attr-defined]
        return True


class SharedKernelSpecs(KernelSpecManager):
    """``shared-gpu``, and ``shared-gpu-NAME`` for each Python environment of an executor."""

    def find_kernel_specs(self) -> dict[str, str]:
        """Return the directory of logos for each kernel's name."""
        gateway: Any = self.parent
        environments = gateway.kernel_manager.executors.environments()
        return {kernel_of(environment): str(LOGOS) for environment in ("", *environments)}

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return a kernelspec.

        Raises
        ------
        NoSuchKernel
            For any other name.
        """
        environment = environment_of(kernel_name)
        if environment is None or kernel_name not in self.find_kernel_specs():
            raise NoSuchKernel(kernel_name)
        return KernelSpec(
            # The executor starts sessions, not this process.
            argv=[],
            display_name=f"Shared GPU ({environment})" if environment else DISPLAY_NAME,
            language="python",
            interrupt_mode="signal",
            resource_dir=str(LOGOS),
            metadata={},
        )

    def get_all_specs(self) -> dict[str, Any]:
        """Return the kernelspecs as the API shows them."""
        specs = {name: self.get_kernel_spec(name) for name in self.find_kernel_specs()}
        return {name: {"resource_dir": spec.resource_dir, "spec": spec.to_dict()} for name, spec in specs.items()}


class NoContents(AsyncContentsManager):
    """Serves no files: notebooks stay where their users are."""

    def get_extra_handlers(self) -> list[Any]:
        """Return none (the base class would serve ``/files``)."""
        return []


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
