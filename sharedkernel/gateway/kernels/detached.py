"""Sessions that were shut down and are still there, and how their users get them back.

A lingering session is no kernel any more: nobody sees it in the kernels API. Its executor keeps its time
(`executor/lingering.py`), and tells a gateway that comes later. A new session of the same user and notebook starts
clean and says what is there; ``%shared attach`` in it puts the earlier one in its place, under the same kernel id, so
that its client notices no more than a restart. So it is with a session that is alive but was left by its client: when
the user's Jupyter server was killed, or the notebook is opened on another machine. Of several, the last one started is
brought back; one that a client still has stays with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sharedkernel.errors import SessionNotFound, SharedKernelError
from sharedkernel.protocol import SessionRecord
from sharedkernel.units import format_seconds

if TYPE_CHECKING:
    from sharedkernel.gateway.kernels.kernel import SessionKernel
    from sharedkernel.gateway.kernels.manager import SessionKernels

log = logging.getLogger(__name__)

#: seconds between looks at whether the cell that asked for the earlier session has ended
_CELL_INTERVAL = 0.05
#: seconds that an earlier session's client gets to go: the relay of a killed Jupyter server takes a moment to notice
_CLIENT_PATIENCE = 5.0

_NOT_BACK = "The earlier session could not be brought back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A session that can be brought back."""

    session: str
    device: str
    user: str
    notebook: str | None
    #: of its process: a later one's is larger
    incarnation: int
    #: the kernel that it still is; None: it was shut down
    kernel: SessionKernel | None = None
    #: when it ends, on the event loop's axis; None: it does not by itself
    until: float | None = field(default=None, compare=False)

    @classmethod
    def of(cls, kernel: SessionKernel) -> Earlier:
        """Return what *kernel* is, which was not shut down."""
        return cls(
            session=kernel.session_id,
            device=kernel.device,
            user=kernel.user,
            notebook=kernel.notebook,
            incarnation=kernel.incarnation,
            kernel=kernel,
        )

    @property
    def is_open(self) -> bool:
        """Whether a client has it."""
        return self.kernel is not None and bool(self.kernel.attached)


class Lingering:
    """The sessions that linger, over all executors.

    Parameters
    ----------
    kernels
        All that do not.
    """

    def __init__(self, kernels: SessionKernels) -> None:
        self._kernels = kernels
        #: by session, in the order in which they were shut down
        self._sessions: dict[str, Earlier] = {}
        #: sessions that are just being put in another one's place: nobody else gets them
        self._promised: set[str] = set()

    def add(self, found: Earlier, seconds: float) -> None:
        """Take note that *found* was shut down, and stays for *seconds*."""
        until = asyncio.get_running_loop().time() + seconds
        self._sessions[found.session] = replace(found, kernel=None, until=until)

    def adopt(self, device: str, records: list[SessionRecord]) -> None:
        """Take note of all that linger on *device*, as its executor says."""
        for session in [session for session, found in self._sessions.items() if found.device == device]:
            del self._sessions[session]
        for record in sorted(records, key=lambda record: record.lingers or 0.0):
            found = Earlier(
                session=record.session,
                device=device,
                user=record.user,
                notebook=record.notebook,
                incarnation=record.incarnation,
            )
            self.add(found, record.lingers or 0.0)

    def forget(self, session: str) -> Earlier | None:
        """Take note that a session lingers no more, and return what it was."""
        return self._sessions.pop(session, None)

    def get(self, session: str) -> Earlier | None:
        """Return a session that lingers; None if it does not."""
        return self._sessions.get(session)

    def of_user(self, user: str) -> list[Earlier]:
        """Return *user*'s lingering sessions, the earliest shut down first."""
        return [found for found in self._sessions.values() if found.user == user]

    # --- bringing back ------------------------------------------------------------------------------------------------

    def find(self, kernel: SessionKernel, *, open_too: bool = False) -> Earlier | None:
        """Return the session of *kernel*'s user and notebook that was started last besides *kernel*.

        Parameters
        ----------
        kernel
            The one in whose place it would be.
        open_too
            Whether it may be one that a client has.
        """
        if kernel.notebook is None:
            return None
        lingering = (found for found in self._sessions.values() if found.session not in self._promised)
        candidates = [found for found in (*lingering, *self._alive(kernel)) if open_too or not found.is_open]
        own = (kernel.user, kernel.notebook)
        return max(
            (found for found in candidates if (found.user, found.notebook) == own),
            key=lambda found: found.incarnation,
            default=None,
        )

    def _alive(self, besides: SessionKernel) -> list[Earlier]:
        return [
            Earlier.of(kernel)
            for kernel in self._kernels.all()
            if kernel is not besides and kernel.has_kernel and kernel.session_id not in self._promised
        ]

    def describe(self, kernel: SessionKernel) -> str | None:
        """Return what *kernel*, which is about to be started, is to say of the earlier session of its notebook."""
        earlier = self.find(kernel, open_too=True)
        if earlier is None:
            return None
        if earlier.is_open:
            return (
                "Another session of this notebook is open in another page or program; once it is closed there, "
                "`%shared attach` brings it here in place of this one."
            )
        left = ""
        if earlier.until is not None:
            left = f" for another {format_seconds(earlier.until - asyncio.get_running_loop().time())}"
        return (
            f"An earlier session of this notebook is still there with its variables{left}; "
            "run `%shared attach` to bring it back in place of this one."
        )

    async def bring_back(self, kernel: SessionKernel, question: int = 0) -> None:
        """Put what *kernel*'s user left of the same notebook in *kernel*'s place, once its cell has ended.

        What comes of it is told in the notebook: at first by the session, whose cell waits for it as the answer to its
        *question*, then from here.
        """
        cell = kernel.activity.running_cell
        earlier = self.find(kernel, open_too=True)
        await kernel.notify(_outlook(earlier), question=question)
        if earlier is None:
            return
        clean = kernel.session_id
        await self._wait_for_turn(kernel, cell)
        if kernel.session_id != clean:
            return  # it was asked for twice, and is there
        # The cell may have taken long, and another page has the earlier session by now.
        newest, earlier = self.find(kernel, open_too=True), self.find(kernel)
        if earlier is None:
            kernel.tell(
                f"{_NOT_BACK}: another page or program has it open, or it has ended. Close it there, then run "
                "`%shared attach` again.",
                cell,
            )
            return
        self._promised.add(earlier.session)
        try:
            end_clean = await kernel.become(earlier)
        except SharedKernelError as error:
            kernel.tell(f"{_NOT_BACK}: {error}", cell)
            raise
        finally:
            self._promised.discard(earlier.session)
        back = "The earlier session of this notebook is back, with its variables."
        if newest is not None and newest.session != earlier.session:
            back += " It is not the last one: that is open in another page or program, and stays there."
        kernel.tell(back, cell, "stdout")
        self.forget(earlier.session)
        if earlier.kernel is not None:
            self._kernels.drop(earlier.kernel)
        if end_clean is not None:
            # Should its executor be away now, it is ended when it is back.
            with contextlib.suppress(SessionNotFound):
                await end_clean()
            log.info("session %s of %s ended: %s is in its place", clean, kernel.user, earlier.session)
            await kernel.learn_whether_it_rests()

    async def _wait_for_turn(self, kernel: SessionKernel, cell: dict[str, Any]) -> None:
        """Return when *cell*, which asked, has ended, and the client of the last session has had its time to go."""
        clock = asyncio.get_running_loop().time
        patient_until = clock() + _CLIENT_PATIENCE
        while kernel.has_kernel:
            newest = self.find(kernel, open_too=True)
            is_open = newest is not None and newest.is_open
            if _rests(kernel, cell) and not (is_open and clock() < patient_until):
                return
            await asyncio.sleep(_CELL_INTERVAL)


def _outlook(earlier: Earlier | None) -> str:
    """Return what is to be expected by who asked for *earlier*."""
    if earlier is None:
        return "There is no earlier session of this notebook: it has ended, or there was none."
    if earlier.is_open:
        return (
            "The last session of this notebook is open in another page or program; if it is closed there within "
            f"{_CLIENT_PATIENCE:g} s, it takes the place of this one."
        )
    return "The earlier session takes the place of this one as soon as this cell has ended."


def _rests(kernel: SessionKernel, cell: dict[str, Any]) -> bool:
    """Whether *kernel* runs nothing, and *cell* has ended: that it has begun may not have been heard yet."""
    return kernel.execution_state != "busy" and kernel.activity.has_ended(cell)
