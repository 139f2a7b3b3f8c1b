"""A cordoned host: it gets no new sessions, and its users are told once.

The host itself keeps this, in a file, and says so in its summaries: so all fronts know, also those that start later.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
from tornado import web

from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.gateway.http.handlers import GatewayHandler, read_body
from sharedkernel.gateway.kernels.manager import SessionKernels
from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: the route at a host, for a front's admins
PATH = "/sharedkernel/api/cordon"


class _State(msgspec.Struct, frozen=True, kw_only=True):
    #: sessions whose users were told, by kernel id
    told: set[str] = set()
    leaves_shelves: bool = False


class Cordon:
    """Whether this host is cordoned, and whom of its sessions' users it has told.

    Parameters
    ----------
    path
        The file that keeps it; an invalid one counts as none.
    manager
        Has the sessions.
    host
        The host's name, for its users.
    """

    def __init__(self, path: Path, manager: SessionKernels, host: str) -> None:
        self._path = path
        self._manager = manager
        self._host = host
        self._state = _read(path)
        self._manager.starter.is_cordoned = self.is_set

    @property
    def is_set(self) -> bool:
        """Whether this host gets no new sessions."""
        return self._state is not None

    @property
    def leaves_shelves(self) -> bool:
        """Whether the host does not wait for users of whom nothing is there but a shelf."""
        return self._state is not None and self._state.leaves_shelves

    def set(self, is_set: bool, *, leaves_shelves: bool) -> None:
        """Begin or end it.

        Raises
        ------
        Refused
            When it cannot be kept.
        """
        told = set[str]() if self._state is None else self._state.told
        state = _State(told=told, leaves_shelves=leaves_shelves) if is_set else None
        if state == self._state:
            return
        try:
            if state is not None:
                replace_file(self._path, msgspec.json.encode(state))
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            raise Refused(f"{self._path} cannot be written ({error.strerror}); nothing was changed.") from None
        self._state = state
        self._manager.starter.is_cordoned = is_set
        log.info("this host is cordoned: it starts no sessions" if is_set else "this host starts sessions again")

    async def tell(self) -> None:
        """Tell each notebook that was not told yet; one whose executor is away is told later."""
        if self._state is None:
            return
        kernels = {str(kernel.kernel_id): kernel for kernel in self._manager.registry.all()}
        told = self._state.told & set(kernels)  # those that have ended are nobody's concern
        for kernel_id in sorted(set(kernels) - told):
            kernel = kernels[kernel_id]
            try:
                await self._manager.executors[kernel.device].notify_session(kernel.session_id, self._sentence())
            except SharedKernelError as error:
                log.info("the user of session %s is not told yet: %s", kernel_id, error)
            else:
                told.add(kernel_id)
        if self._state is not None and told != self._state.told:
            self._state = msgspec.structs.replace(self._state, told=told)
            try:
                replace_file(self._path, msgspec.json.encode(self._state), durable=False)
            except OSError as error:
                log.warning("%s cannot be written (%s); some may be told twice.", self._path, error.strerror)

    def _sentence(self) -> str:
        return (
            f"The machine of this notebook, {self._host}, is to be taken out of service. Nothing is lost yet: save "
            "what you need, also of your shelf, then shut this kernel down and start it again; it starts on another "
            "machine."
        )


class CordonHandler(GatewayHandler):
    """``/sharedkernel/api/cordon``: whether this host gets new sessions."""

    actions: ClassVar[dict[str, str]] = {"PUT": "cordon host"}

    @web.authenticated
    async def put(self) -> None:
        """Begin or end it: ``{"cordoned": true, "leave_shelves": false}``; for admins."""
        cordon = cast("Cordon | None", self.settings.get("cordon"))
        self.check_admin("may cordon a host")
        body = read_body(self, {"leave_shelves": bool})
        if not isinstance(body.get("cordoned"), bool):
            raise Refused('`cordoned` is missing; send {"cordoned": true} or false.', reason="bad_request")
        if cordon is None:
            raise Refused("this host is in no cluster; there is nowhere else for sessions to start.")
        cordon.set(body["cordoned"], leaves_shelves=body.get("leave_shelves", False))
        self.finish_empty()
        await cordon.tell()


default_handlers: list[Any] = [(PATH, CordonHandler)]


def _read(path: Path) -> _State | None:
    """Return the state that the file keeps; None if the host is not cordoned."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s); this host counts as cordoned.", path, error)
        return _State()
