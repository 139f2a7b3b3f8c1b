"""Sessions that were shut down and are still there, and how their users get them back.

A lingering session is no kernel any more: nobody sees it in the kernels API. Its executor keeps its time
(`executor/lingering.py`), and tells a gateway that comes later. A new session of the same user and notebook starts
clean and says what is there; ``%shared attach`` in it puts the earlier one in its place, under the same kernel id, so
that its client notices no more than a restart. So it is with a session that is alive but was left by its client: when
the user's Jupyter server was killed, or the notebook is opened on another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from sharedkernel.errors import SessionNotFound, SharedKernelError
from sharedkernel.protocol import SessionRecord
from sharedkernel.units import format_seconds

if TYPE_CHECKING:
    from sharedkernel.gateway.kernel import SessionKernel
    from sharedkernel.gateway.kernels import SessionKernels

log = logging.getLogger(__name__)

#: seconds between looks at whether the cell that asked for the earlier session has ended
_CELL_INTERVAL = 0.05

_NOT_BACK = "The earlier session could not be brought back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A session that can be brought back."""

    session: str
    device: str
    user: str
    notebook: str | None
    #: the kernel that it still is, without a client; None: it was shut down
    kernel: SessionKernel | None = None
    #: when it ends, on the event loop's axis; None: it does not by itself
    until: float | None = field(default=None, compare=False)


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

    def add(self, session: str, *, device: str, user: str, notebook: str | None, seconds: float) -> None:
        """Take note that a session was shut down, and stays for *seconds*."""
        until = asyncio.get_running_loop().time() + seconds
        self._sessions[session] = Earlier(session=session, device=device, user=user, notebook=notebook, until=until)

    def adopt(self, device: str, records: list[SessionRecord]) -> None:
        """Take note of all that linger on *device*, as its executor says."""
        for session in [session for session, found in self._sessions.items() if found.device == device]:
            del self._sessions[session]
        for record in sorted(records, key=lambda record: record.lingers or 0.0):
            self.add(
                record.session,
                device=device,
                user=record.user,
                notebook=record.notebook,
                seconds=record.lingers or 0.0,
            )

    def forget(self, session: str) -> Earlier | None:
        """Take note that a session lingers no more, and return what it was."""
        return self._sessions.pop(session, None)

    def get(self, session: str) -> Earlier | None:
        """Return a session that lingers; None if it does not."""
        return self._sessions.get(session)

    def seconds_left(self, session: str) -> float | None:
        """Return how much longer a session lingers; None if it does not."""
        found = self._sessions.get(session)
        if found is None or found.until is None:
            return None
        return max(0.0, found.until - asyncio.get_running_loop().time())

    def of_user(self, user: str) -> list[Earlier]:
        """Return *user*'s lingering sessions, the earliest shut down first."""
        return [found for found in self._sessions.values() if found.user == user]

    # --- bringing back ------------------------------------------------------------------------------------------------

    def find(self, user: str, notebook: str | None, *, besides: SessionKernel | None = None) -> Earlier | None:
        """Return what *user* left of *notebook*: the session shut down last, else the last started without a client."""
        if notebook is None:
            return None
        candidates = [found for found in self._sessions.values() if (found.user, found.notebook) == (user, notebook)]
        found = chain(reversed(candidates), self._left(user, notebook, besides))
        return next((earlier for earlier in found if earlier.session not in self._promised), None)

    def _left(self, user: str, notebook: str, besides: SessionKernel | None) -> Iterator[Earlier]:
        for kernel in sorted(self._kernels.all(), key=lambda kernel: kernel.incarnation, reverse=True):
            is_same = (kernel.user, kernel.notebook) == (user, notebook) and kernel is not besides
            if is_same and kernel.has_kernel and not kernel.attached:
                yield Earlier(
                    session=kernel.session_id, device=kernel.device, user=user, notebook=notebook, kernel=kernel
                )

    def describe(self, earlier: Earlier | None) -> str | None:
        """Return what a new session of the same notebook says of *earlier*."""
        if earlier is None:
            return None
        left = ""
        if earlier.until is not None:
            left = f" for another {format_seconds(earlier.until - asyncio.get_running_loop().time())}"
        return (
            f"An earlier session of this notebook is still there with its variables{left}; "
            "run `%shared attach` to bring it back in place of this one."
        )

    async def bring_back(self, kernel: SessionKernel) -> None:
        """Put what *kernel*'s user left of the same notebook in *kernel*'s place, once its cell has ended.

        What comes of it is told in the notebook: at first by the session, whose cell waits for that, then from here.
        """
        cell = kernel.activity.running_cell
        earlier = self.find(kernel.user, kernel.notebook, besides=kernel)
        if earlier is None:
            await kernel.notify("There is no earlier session of this notebook: it has ended, or there was none.")
            return
        await kernel.notify("The earlier session takes the place of this one as soon as this cell has ended.")
        while kernel.has_kernel and not _rests(kernel, cell):  # noqa: ASYNC110 (it does, or its process ends)
            await asyncio.sleep(_CELL_INTERVAL)
        if kernel.session_id == earlier.session:
            return  # it was asked for twice, and is there
        # The cell may have taken long, and another page has the earlier session by now.
        earlier = self.find(kernel.user, kernel.notebook, besides=kernel)
        if earlier is None:
            kernel.tell(f"{_NOT_BACK}: another page has it by now, or it has ended.", cell)
            return
        clean = kernel.session_id
        self._promised.add(earlier.session)
        try:
            end_clean = await kernel.become(earlier)
        except SharedKernelError as error:
            kernel.tell(f"{_NOT_BACK}: {error}", cell)
            raise
        finally:
            self._promised.discard(earlier.session)
        kernel.tell("The earlier session of this notebook is back, with its variables.", cell, "stdout")
        self.forget(earlier.session)
        if earlier.kernel is not None:
            self._kernels.drop(earlier.kernel)
        if end_clean is not None:
            # Should its executor be away now, it is ended when it is back.
            with contextlib.suppress(SessionNotFound):
                await end_clean()
            log.info("session %s of %s ended: %s is in its place", clean, kernel.user, earlier.session)
            await kernel.learn_whether_it_rests()


def _rests(kernel: SessionKernel, cell: dict[str, Any]) -> bool:
    """Whether *kernel* runs nothing, and *cell* has ended: that it has begun may not have been heard yet."""
    return kernel.execution_state != "busy" and kernel.activity.has_ended(cell)
