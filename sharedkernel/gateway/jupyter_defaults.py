"""Parts and defaults of Jupyter's server that differ for a gateway: it serves kernels alone, and users by their tokens.

The kernelspecs that it offers are in no file, so nothing else can be started.
"""

from __future__ import annotations

import os
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_server.auth import Authorizer, User
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.services.contents.manager import AsyncContentsManager
from jupyter_server.services.sessions.sessionmanager import SessionManager
from tornado.web import HTTPError
from traitlets import Integer, default

from sharedkernel.gateway.auth.hub import HubUsers
from sharedkernel.gateway.auth.identity import GatewayUser, SingleUser, TokenUsers, requesting_user
from sharedkernel.gateway.auth.tickets import new_id
from sharedkernel.gateway.channels.websocket import SessionWebsocket
from sharedkernel.gateway.config.options import GatewayOptions
from sharedkernel.gateway.config.settings import CONFIG_NAME
from sharedkernel.gateway.kernels.manager import SessionKernels
from sharedkernel.jupyter.names import DISPLAY_NAME, LOGOS, environment_of, kernel_of

DEFAULT_PORT = 8585
#: identity provider for each value of the option `identity`
_IDENTITIES = {"single": SingleUser, "tokens": TokenUsers, "jupyterhub": HubUsers}


class OwnNotebookSessions(SessionManager):
    """Shows a user the notebook sessions of their own kernels; admins see all."""

    def new_session_id(self) -> str:
        """Return the id of a new notebook session, which begins as those of this host's kernels."""
        return new_id(self.kernel_manager.host)

    async def get_session(self, **kwargs: Any) -> dict[str, Any]:
        """Return the notebook session described by *kwargs* (its id, or its path).

        A path means the requesting user's own notebook, for admins too: every user may have an ``Untitled.ipynb``.

        Raises
        ------
        HTTPError
            404 when there is none that this user may see.
        """
        mine_only = "path" in kwargs
        named = {column: value for column, value in kwargs.items() if column in self._columns}
        where = " AND ".join(f"{column}=?" for column in named)
        rows = self.cursor.execute(f"SELECT * FROM session WHERE {where}", [*named.values()]).fetchall()
        for row in rows:
            if not mine_only or self._owner(row) == _user().username:
                model = await self.row_to_model(row, tolerate_culled=True)
                if model is not None:
                    return dict(model)
        raise HTTPError(404, "Session not found")

    async def session_exists(self, path: str) -> bool:
        """Whether the requesting user has a notebook session for *path*."""
        try:
            await self.get_session(path=path)
        except HTTPError:
            return False
        return True

    async def row_to_model(self, row: Any, tolerate_culled: bool = False) -> dict[str, Any] | None:
        """Return the model of a row for the API.

        Raises
        ------
        KeyError
            When its kernel is gone or another user's, unless that is tolerated; then None is returned.
        """
        owner = self._owner(row)
        if owner is not None and not _user().may_see(owner):
            if tolerate_culled:
                return None
            raise KeyError(row["session_id"])
        return await super().row_to_model(row, tolerate_culled)

    def kernel_of(self, session_id: str) -> str | None:
        """Return the kernel id of any user's notebook session; None if there is no such session."""
        row = self.cursor.execute("SELECT kernel_id FROM session WHERE session_id=?", (session_id,)).fetchone()
        return None if row is None else str(row["kernel_id"])

    def close(self) -> None:
        """Close the database, of which Jupyter closes the cursor alone: Python warns when it is collected open."""
        super().close()  # type: ignore[no-untyped-call]
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get_kernel_env(self, path: str | None, name: str | None = None) -> dict[str, str]:
        """Return environment variables for a new kernel: the notebook's path, and none of the gateway's own."""
        return {"KERNEL_NOTEBOOK": path} if path else {}

    def _owner(self, row: Any) -> str | None:
        kernel = self.kernel_manager.find(row["kernel_id"])
        return None if kernel is None else kernel.user


def _user() -> GatewayUser:
    user = requesting_user()
    if user is None:
        raise HTTPError(403)
    return user


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


class NoContents(AsyncContentsManager):
    """Serves no files: notebooks stay where their users are."""

    def get_extra_handlers(self) -> list[Any]:
        """Return none (the base class would serve ``/files``)."""
        return []


class JupyterDefaults(GatewayOptions):
    """Default values of Jupyter's own traits; goes before Jupyter's server in the bases."""

    #: bounded, unlike Jupyter's: the system takes what exceeds 16 bits off, and serves another port
    port = Integer(min=0, max=65535, help="Port to listen on; 0: any that is free.").tag(config=True)

    _default_config_file_name = default("config_file_name")(lambda self: CONFIG_NAME)
    # cookies identify nobody, so none has to outlive this process
    _default_cookie_secret = default("cookie_secret")(lambda self: os.urandom(32))
    _default_allow_remote = default("allow_remote_access")(lambda self: False)
    _default_ip = default("ip")(lambda self: "127.0.0.1")
    _port_default = default("port")(lambda self: DEFAULT_PORT)
    _port_retries_default = default("port_retries")(lambda self: 0)  # users have stored this gateway's address
    _default_kernel_manager_class = default("kernel_manager_class")(
        lambda self: "sharedkernel.gateway.hosts.member.FrontKernels" if self.front else SessionKernels
    )
    _default_session_manager_class = default("session_manager_class")(lambda self: OwnNotebookSessions)
    _default_websocket_class = default("kernel_websocket_connection_class")(lambda self: SessionWebsocket)
    _default_kernel_spec_manager_class = default("kernel_spec_manager_class")(lambda self: SharedKernelSpecs)
    _default_contents_manager_class = default("contents_manager_class")(lambda self: NoContents)
    _default_authorizer_class = default("authorizer_class")(lambda self: OwnerAuthorizer)
    _default_identity_provider_class = default("identity_provider_class")(lambda self: _IDENTITIES[self.identity])
