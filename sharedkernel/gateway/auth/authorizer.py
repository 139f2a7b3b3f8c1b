"""Authorization: which kernels a request may name.

The kernel manager knows the owners of kernels; this module answers 404 on every route for a kernel of another user.
Kernel ids are no secrets, since the status lists all sessions. Who sends a request is known by then: `identity.py` has
checked the token.
"""

from __future__ import annotations

from jupyter_server.auth import Authorizer, User
from jupyter_server.base.handlers import JupyterHandler

from sharedkernel.gateway.auth.identity import GatewayUser


class OwnerAuthorizer(Authorizer):
    """Lets users act on their own kernels and sessions, admins on all."""

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
