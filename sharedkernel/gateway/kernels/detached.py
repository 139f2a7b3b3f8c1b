"""Detached sessions: shut down but still running for a while, so that their users can reattach.

A detached session has no kernel: the kernels API does not show it. Its executor ends it when its time is over
(`executor/sessions/detached.py`), and reports it to a gateway that starts later. A new session of the same user and
notebook starts clean and says that the earlier one exists; ``%shared attach`` in it puts the earlier session in its
place, under the same kernel id, so that its client sees no more than a restart.

The same holds for a session that is alive but whose client is gone: when the user's Jupyter server was killed, or the
notebook is opened on another machine. Of several sessions the one started last is reattached; one that has a client
stays with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from sharedkernel.errors import Refused, SessionNotFound, SharedKernelError
from sharedkernel.gateway.channels.outputs import TokenBucket
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.registry import SessionRegistry
from sharedkernel.protocol import SessionRecord
from sharedkernel.system.tasks import BackgroundTasks
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: seconds between checks whether the cell that asked to reattach has ended
_CELL_INTERVAL = 0.05
#: seconds that the client of an earlier session has to go: the relay of a killed Jupyter server needs a moment
_CLIENT_PATIENCE = 5.0
#: answers per second to a session that asks for the earlier one; a person asks once
_ANSWERS_PER_SECOND = 2.0

_NOT_BACK = "The earlier session could not be brought back"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierSession:
    """A session that its user can reattach to."""

    session: str
    device: str
    user: str
    notebook: str | None
    #: of its process: a later one's is larger
    incarnation: int
    #: the kernel that it still has; None: it is detached
    kernel: SessionKernel | None = None
    #: whether it is detached because its user has restarted the notebook's kernel
    is_restarted: bool = False
    #: when it ends, on the event loop's clock; None: never by itself
    until: float | None = field(default=None, compare=False)

    @classmethod
    def of(cls, kernel: SessionKernel) -> EarlierSession:
        """Return the session of *kernel*, which is not detached."""
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
        """Whether a client is attached to it."""
        return self.kernel is not None and bool(self.kernel.outputs.clients)


@dataclass(slots=True)
class _Questions:
    """The questions of one session for the earlier one; a later question replaces one that waits."""

    pace: TokenBucket = field(default_factory=lambda: TokenBucket(_ANSWERS_PER_SECOND))
    #: number of the newest one; None: it is answered
    newest: int | None = None
    #: whether a task answers them
    is_answering: bool = False


class DetachedSessions:
    """The detached sessions of all executors.

    Parameters
    ----------
    registry
        All sessions that are not detached.
    executors
        Those that have the sessions.
    tasks
        Runs what takes longer.
    """

    def __init__(self, registry: SessionRegistry, executors: Executors, tasks: BackgroundTasks) -> None:
        self._registry = registry
        self._executors = executors
        self._tasks = tasks
        self._questions: WeakKeyDictionary[SessionKernel, _Questions] = WeakKeyDictionary()
        #: what was known of earlier sessions on hosts that were away when a session started
        self._elsewhere: WeakKeyDictionary[SessionKernel, str] = WeakKeyDictionary()
        #: by session, in the order in which they were shut down
        self._sessions: dict[str, EarlierSession] = {}
        #: sessions that are taking another one's place right now, so that no other takes them
        self._reserved: set[str] = set()

    def add(self, found: EarlierSession, seconds: float) -> None:
        """Record a session that was shut down.

        Parameters
        ----------
        found
            The session.
        seconds
            How long it stays.
        """
        until = asyncio.get_running_loop().time() + seconds
        self._sessions[found.session] = replace(found, kernel=None, until=until)

    def replace_all(self, device: str, records: list[SessionRecord]) -> None:
        """Record the detached sessions of one device.

        Parameters
        ----------
        device
            Its name in the configuration.
        records
            All of its detached sessions, as its executor reports them.
        """
        for session in [session for session, found in self._sessions.items() if found.device == device]:
            del self._sessions[session]
        for record in sorted(records, key=lambda record: record.lingers or 0.0):
            found = EarlierSession(
                session=record.session,
                device=device,
                user=record.user,
                notebook=record.notebook,
                incarnation=record.incarnation,
                is_restarted=record.restarted,
            )
            self.add(found, record.lingers or 0.0)

    def forget(self, session: str) -> None:
        """Record that the session of this name is not detached any more."""
        self._sessions.pop(session, None)

    def get(self, session: str) -> EarlierSession | None:
        """Return the detached session of this name; None if there is none."""
        return self._sessions.get(session)

    def of_user(self, user: str) -> list[EarlierSession]:
        """Return *user*'s detached sessions, the first that was shut down first."""
        return [found for found in self._sessions.values() if found.user == user]

    def owners(self) -> set[str]:
        """Return the names of the users with detached sessions."""
        return {found.user for found in self._sessions.values()}

    async def end(self, earlier: EarlierSession) -> None:
        """End a detached session."""
        self.forget(earlier.session)
        with contextlib.suppress(SessionNotFound):
            await self._executors[earlier.device].end_session(earlier.session)

    # --- reattaching --------------------------------------------------------------------------------------------------

    def find(self, kernel: SessionKernel, *, include_open: bool = False) -> EarlierSession | None:
        """Return the last started session of *kernel*'s user and notebook, other than *kernel*.

        Parameters
        ----------
        kernel
            The kernel whose place it would take.
        include_open
            Whether sessions count that have a client.
        """
        if kernel.notebook is None:
            return None
        alive = [EarlierSession.of(each) for each in self._registry.all() if each is not kernel and each.has_kernel]
        candidates = [
            found
            for found in (*self._sessions.values(), *alive)
            if (found.user, found.notebook) == (kernel.user, kernel.notebook)
            and found.session not in self._reserved
            and (include_open or not found.is_open)
        ]
        return max(candidates, key=lambda found: found.incarnation, default=None)

    def describe(self, kernel: SessionKernel, *, elsewhere: str | None = None) -> str | None:
        """Return the notice about an earlier session for *kernel*, which is about to start; None: there is none.

        Parameters
        ----------
        kernel
            The new session.
        elsewhere
            What is known of an earlier one on another host, which is away.
        """
        earlier = self.find(kernel, include_open=True)
        if earlier is None or earlier.is_restarted:  # who restarts wants to begin anew
            if elsewhere is not None:
                self._elsewhere[kernel] = elsewhere
            return elsewhere
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

    def request(self, kernel: SessionKernel, question: int) -> None:
        """Answer a question for the earlier session of *kernel*'s notebook, and reattach it if there is one.

        A session's code may ask in a loop. So each session has one task for all of its questions, at a limited pace,
        and a question that waits is dropped for a later one: the cell that asked it waits no more.

        Parameters
        ----------
        kernel
            The kernel in which the user asked.
        question
            Number of its session's question.
        """
        questions = self._questions.setdefault(kernel, _Questions())
        questions.newest = question
        if not questions.is_answering:
            questions.is_answering = True
            self._tasks.spawn(self._answer_all(kernel, questions))

    async def _answer_all(self, kernel: SessionKernel, questions: _Questions) -> None:
        try:
            while questions.newest is not None:
                await self._reattach(kernel, questions)
        finally:
            questions.is_answering = False

    async def _answer(self, kernel: SessionKernel, questions: _Questions) -> EarlierSession | None:
        """Answer the newest question if it has no answer yet, and return the session that it asks for."""
        if questions.newest is not None:
            await asyncio.sleep(questions.pace.spend(1, now=asyncio.get_running_loop().time()))
        earlier = self.find(kernel, include_open=True)
        question, questions.newest = questions.newest, None
        if question is not None:
            await kernel.notify(
                _outlook(earlier, self._elsewhere.get(kernel)), question=question, holds_cells=earlier is not None
            )
        return earlier

    async def _reattach(self, kernel: SessionKernel, questions: _Questions) -> None:
        """Put the earlier session of *kernel*'s notebook in *kernel*'s place, once its cell has ended.

        The notebook shows the outcome: first as the session's own output, whose cell waits for the answer to its
        question, then from here.

        Raises
        ------
        SharedKernelError
            When the earlier session or an executor is gone.
        """
        cell = kernel.activity.running_cell
        if await self._answer(kernel, questions) is None:
            return
        own = kernel.session_id
        await self._wait_for_turn(kernel, cell, questions)
        if kernel.session_id != own:
            return  # the user asked twice
        # The cell may have taken long, and another page may have the earlier session by now.
        newest, earlier = self.find(kernel, include_open=True), self.find(kernel)
        if earlier is None:
            kernel.outputs.show(
                f"{_NOT_BACK}: another page or program has it open, or it has ended. Close it there, then run "
                "`%shared attach` again.",
                cell,
            )
            await kernel.notify("", holds_cells=False)
            return
        back = "The earlier session of this notebook is back, with its variables."
        if newest is not None and newest.session != earlier.session:
            back += " It is not the last one: that is open in another page or program, and stays there."
        try:
            await self._replace(kernel, earlier, lambda: kernel.outputs.show(back, cell, "stdout"))
        except SharedKernelError as error:
            if kernel.session_id == own:
                kernel.outputs.show(f"{_NOT_BACK}: {error}", cell)
                with contextlib.suppress(SharedKernelError):
                    await kernel.notify("", holds_cells=False)
            raise

    async def bring_back(self, kernel: SessionKernel) -> None:
        """Put the earlier session of *kernel*'s notebook in *kernel*'s place, now.

        Raises
        ------
        Refused
            When there is none, another page has it open, or *kernel* runs a cell.
        SharedKernelError
            When the earlier session or an executor is gone.
        """
        earlier = self.find(kernel)
        if earlier is None:
            is_open = self.find(kernel, include_open=True) is not None
            raise SessionNotFound(
                "the earlier session of this notebook is open in another page or program; close it there first."
                if is_open
                else _outlook(None, self._elsewhere.get(kernel))
            )
        if kernel.execution_state == "busy":
            raise Refused(
                "a cell runs in this notebook; interrupt it, or wait until it has ended, then bring the earlier "
                "variables back."
            )
        await self._replace(kernel, earlier, lambda: None)

    async def _replace(self, kernel: SessionKernel, earlier: EarlierSession, on_taken: Callable[[], None]) -> None:
        """Put *earlier* in *kernel*'s place, call *on_taken*, and end the session that *kernel* had."""
        own = kernel.session_id
        self._reserved.add(earlier.session)
        try:
            end_own = await kernel.take_over(earlier.session, earlier.device, is_detached=earlier.kernel is None)
        finally:
            self._reserved.discard(earlier.session)
        on_taken()
        self.forget(earlier.session)
        if earlier.kernel is not None:
            self._registry.drop(earlier.kernel)
        if end_own is not None:
            # If its executor is away now, the session ends when the executor is back.
            with contextlib.suppress(SessionNotFound):
                await end_own()
            log.info("session %s of %s ended: %s took its place", own, kernel.user, earlier.session)
            await kernel.refresh_activity()

    async def _wait_for_turn(self, kernel: SessionKernel, cell: dict[str, Any], questions: _Questions) -> None:
        """Return when *cell*, which asked, has ended, and the client of the last session has had its time to go.

        Answers later questions meanwhile.
        """
        clock = asyncio.get_running_loop().time
        patient_until = clock() + _CLIENT_PATIENCE
        while kernel.has_kernel:
            newest = self.find(kernel, include_open=True)
            is_open = newest is not None and newest.is_open
            # A cell that asks once more waits for an answer: cells that ask in a loop would never leave it idle.
            is_free = kernel.execution_state != "busy" or questions.newest is not None
            if is_free and kernel.activity.has_ended(cell) and not (is_open and clock() < patient_until):
                questions.newest = None
                return
            await self._answer(kernel, questions)
            await asyncio.sleep(_CELL_INTERVAL)


def _outlook(earlier: EarlierSession | None, elsewhere: str | None) -> str:
    """Return what the user who asks for *earlier*, or for one that may be *elsewhere*, can expect."""
    if earlier is None and elsewhere is not None:
        return elsewhere
    if earlier is None:
        return "There is no earlier session of this notebook: it has ended, or there was none."
    if earlier.is_open:
        return (
            "The last session of this notebook is open in another page or program; if it is closed there within "
            f"{_CLIENT_PATIENCE:g} s, it takes the place of this one."
        )
    return "The earlier session takes the place of this one as soon as this cell has ended."
