"""Jupyter's notebook sessions (``/api/sessions``: which notebook uses which kernel), separate for each user."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from jupyter_server.services.sessions.sessionmanager import SessionManager
from tornado.web import HTTPError

from sharedkernel.gateway.auth.identity import GatewayUser, requesting_user


class OwnNotebookSessions(SessionManager):
    """Shows a user the notebook sessions of their own kernels; admins see all."""

    def new_session_id(self) -> str:
        """Return the id of a new notebook session, which begins as those of this host's kernels."""
        prefix: str = self.kernel_manager.id_prefix
        return prefix + str(uuid4())[len(prefix) :]

    async def get_session(self, **kwargs: Any) -> dict[str, Any]:
        """Return the notebook session described by *kwargs* (its id, or its path).

        A path means the requesting user's own notebook, for admins too: every user may have an ``Untitled.ipynb``.

        Raises
        ------
        HTTPError
            404 when there is none that this user may see.
        """
        mine_only = "path" in kwargs
        columns = " AND ".join(f"{column}=?" for column in sorted(kwargs) if column in self._columns)
        values = [kwargs[column] for column in sorted(kwargs) if column in self._columns]
        rows = self.cursor.execute(f"SELECT * FROM session WHERE {columns}", values).fetchall()
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
        return self.kernel_manager.owner(row["kernel_id"])


def _user() -> GatewayUser:
    user = requesting_user()
    if user is None:
        raise HTTPError(403)
    return user
