"""The handle on each session process, and the part of it that is on disk for the next executor.

Parts of the handle say how far a session's offloading, its grant and its wait are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from sharedkernel import protocol
from sharedkernel.executor.processes.process_tree import read_stat
from sharedkernel.executor.processes.programs import Program, StoppedPrograms
from sharedkernel.executor.processes.sanitize import MOST_BYTES, within
from sharedkernel.ipc.shared_page import Page, Word
from sharedkernel.protocol import Limits, Memory, SessionIdentity, SessionRecord
from sharedkernel.quota_check import CountedMemory
from sharedkernel.scheduling.model.types import MemoryProfile, SessionId

log = logging.getLogger(__name__)

#: bytes that wait to be read by a session; it is hung up on when they are more, and greets again when it reads
_MOST_UNREAD = 4 << 20
#: threads that a session can say it computes in
_MOST_THREADS = 1 << 15
#: waits of a session that are remembered
_WAITS_KEPT = 200


class PastWaits:
    """The last waits for grants, and their percentiles, computed once for each new one.

    Parameters
    ----------
    most
        How many are remembered.
    """

    def __init__(self, most: int) -> None:
        self._seconds: deque[float] = deque(maxlen=most)
        self._percentiles: tuple[float | None, float | None] | None = (None, None)

    def add(self, seconds: float) -> None:
        """Remember a wait of so many seconds."""
        self._seconds.append(seconds)
        self._percentiles = None

    def percentiles(self) -> tuple[float | None, float | None]:
        """Return the median and the 95th percentile, seconds; None before the first."""
        if self._percentiles is None:
            # numpy's import would be waited for at every start; a single wait is all there is to tell, twice
            waits = self._seconds if len(self._seconds) > 1 else 2 * list(self._seconds)
            marks = statistics.quantiles(waits, n=20, method="inclusive")
            self._percentiles = marks[9], marks[18]
        return self._percentiles


@dataclass(slots=True, kw_only=True)
class OffloadProgress:
    """A session's memory away from the device, and how it came there and back."""

    #: what stayed and why, for people
    stayed: str | None = None
    #: why it was last not offloaded, for people
    declined: str | None = None
    #: it could not be offloaded since its last cell ended
    is_unmovable: bool = False
    #: times that it was offloaded and restored, and seconds that these took
    num_offloads: int = 0
    num_restores: int = 0
    #: tries to bring it back in a row that failed
    num_failures: int = 0
    offload_seconds: float = 0.0
    restore_seconds: float = 0.0
    #: requests to offload it that wait for its answer
    requests: list[asyncio.Future[None]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class GrantProgress:
    """A session's present grant, and how it is demanded."""

    #: it was granted the device, and is notified as soon as its lane is made
    is_lane_coming: bool = False
    #: it held a grant when this executor took it over, and the scheduler would not have given it one
    is_unsanctioned: bool = False
    #: signals to yield since its present grant, and when the first was sent, on the event loop's axis
    num_signals: int = 0
    first_signal_at: float = 0.0
    #: stopped as a process, in the middle of what it does on the device
    is_stopped: bool = False


@dataclass(slots=True, kw_only=True)
class WaitProgress:
    """A session's wait for the device or for its memory, and earlier ones."""

    #: when it began, on the event loop's axis; None: it does not wait
    since: float | None = None
    #: the waits for each grant
    past: PastWaits = field(default_factory=lambda: PastWaits(_WAITS_KEPT))
    #: what was last sent to the session about it, and when
    sent: protocol.Waiting | None = None
    sent_at: float = 0.0


class PersistedSession(SessionIdentity, kw_only=True):
    """One process, as the next executor needs to know it."""

    #: its name for life
    process: str
    #: start time in clock ticks since boot; distinguishes the process from a later one with the same pid
    started: int
    limits: Limits | None = None
    #: device-seconds, as last counted
    attained: float = 0.0
    #: user id that it runs under once it serves somebody
    uid: int = msgspec.field(default_factory=os.getuid)
    #: how users are kept apart, as it was forked for (see `policy.py`)
    isolation: str = "none"
    #: of the code that it was forked with (see `environments.py`)
    stamp: str = ""
    #: when it ends, on `time.monotonic`'s axis, since its user has shut it down; None: they have not
    lingers_until: float | None = None
    #: it lingers since its user has restarted its notebook's kernel
    restarted: bool = False
    #: it has run something, so it may hold what its user wants back
    used: bool = True
    #: it has said that it serves its session; until then nobody has come to it
    assigned: bool = True


class SessionHandle(PersistedSession, kw_only=True, eq=False):
    """One process, a spare or somebody's session: its record, and what this executor knows besides.

    An empty name of a session marks a spare that is taken, about to get one.
    """

    page: Page
    #: calls that handle greetings in its name once its process id is known
    early_hellos: list[Callable[[], None]] = msgspec.field(default_factory=list)
    #: done when it first said hello, failed when it ended before
    ready: asyncio.Future[None]
    #: set once it is reaped
    ended: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    #: done when it serves the session it was assigned; None: it is a spare, or served it when it was adopted
    assignment: asyncio.Future[None] | None = None
    #: its control connection, while there is one
    transport: asyncio.WriteTransport | None = None
    #: when something was last seen to run in it, on `time.monotonic`'s axis; None: it was not looked at yet
    used_at: float | None = None
    memory: Memory = msgspec.field(default_factory=Memory)
    data_bytes: int = 0
    #: limit on its private memory, as last set
    data_limit: int = 0
    #: bytes beyond its persistent memory that it was promised (to be restored, or to grow), until it is measured anew
    promised_bytes: int = 0
    #: bytes beyond what it has that its present want is for
    growth: int = 0
    #: its memory away from the device
    offload: OffloadProgress = msgspec.field(default_factory=OffloadProgress)
    #: device-seconds that it was seen to use without a grant
    ungranted: float = 0.0
    #: what of its user's goes on where no cell runs, as last heard; None: it was not heard of
    activity: tuple[str, ...] | None = None
    #: why its iterations use no lane whose bytes others share, for people; None: they do, or nothing is known yet
    lane_note: str | None = None
    #: most bytes that its user can have on this device; the controller sets it
    most_bytes: int = MOST_BYTES
    #: somebody asked for its end, so it is no surprise
    end_asked: bool = False
    #: slug and sentence, where this executor ended it of its own accord
    end_reason: tuple[str, str] | None = None
    grant: GrantProgress = msgspec.field(default_factory=GrantProgress)
    wait: WaitProgress = msgspec.field(default_factory=WaitProgress)
    #: its programs on the device, as last seen
    programs: tuple[Program, ...] = ()
    #: their processes, while they are stopped; None: they never were
    stopped: StoppedPrograms | None = None
    #: the allowance that was last sent to it
    sent_allowance: protocol.Allowance | None = None
    #: readable once it has ended
    pidfd: int | None = None

    @property
    def persistent_bytes(self) -> int:
        """The bytes that it keeps right now: what was measured last, or more where its page says so since."""
        return max(self.memory.persistent, self._claimed(Word.PERSISTENT))

    @property
    def live_bytes(self) -> int:
        """The bytes that it uses beyond that now, as its page says, whose two words add up to what it has in use."""
        return max(0, self._claimed(Word.PERSISTENT) + self._claimed(Word.LIVE) - self.persistent_bytes)

    @property
    def num_threads(self) -> int:
        """The threads in which it computes beside its cells, as its page says."""
        return within(self.page.words[Word.THREADS], _MOST_THREADS)

    def _claimed(self, word: Word) -> int:
        """Return a word of its page, as far as it can be true: it can write anything there, at any time."""
        return within(self.page.words[word], max(self.most_bytes, self.memory.persistent))

    @property
    def counted(self) -> CountedMemory:
        """The part of its memory that counts against its user's quota."""
        measured = self.memory.persistent
        claimed = self._claimed(Word.PERSISTENT) + self._claimed(Word.LIVE)
        live = max(self.promised_bytes, claimed - measured)
        return CountedMemory(persistent=measured, live=live, needed=self.memory.needed)

    @property
    def own_bytes(self) -> int:
        """Bytes that are its own beyond what every process holds: what it has in use, or was promised."""
        return self.counted.persistent + self.counted.live

    def take(self) -> None:
        """Keep others from taking this spare, before its session is known to all."""
        self.session = ""

    def give_to(self, client: protocol.StartSession | protocol.ReclaimSession, incarnation: int) -> None:
        """Record whose kernel the session is from now on, and the number of that (see `sessions/starting.py`)."""
        self.kernel, self.notebook, self.client_key = client.kernel, client.notebook, client.client_key
        self.incarnation = incarnation

    def send(self, *messages: protocol.Message) -> None:
        """Send to the session, if it is connected; one that has not read much of what it was sent is hung up on."""
        if self.transport is None:
            return
        if self.transport.get_write_buffer_size() > _MOST_UNREAD:
            log.warning("hung up on session %s of %s, which does not read what it is told", self.session, self.user)
            self.disconnect()
            return
        data = [protocol.encode(message, most=protocol.MAX_ANSWER_BYTES) for message in messages]
        self.transport.write(b"".join(data))

    def disconnect(self) -> None:
        """Hang up on the session, if it is connected; it connects again and reports where it stands."""
        if self.transport is not None:
            self.transport.abort()
            self.transport = None

    def is_there(self) -> bool:
        """Return whether the process is, so that its id has not been given to another one."""
        try:
            if self.pidfd is None:
                return bool(self.pid) and start_time(self.pid) == self.started
            signal.pidfd_send_signal(self.pidfd, 0)
        except OSError:  # it is reaped, or cannot be looked at
            return False
        return True

    def send_signal(self, signum: int) -> None:
        """Send a signal to the process; to its whole group when it should end. Nothing is sent to a later one."""
        if not self.is_there():
            return
        with contextlib.suppress(ProcessLookupError):
            if signum in (signal.SIGTERM, signal.SIGKILL):
                # A group has a process id that nobody else gets while any of it is there.
                os.killpg(self.pid, signum)
                os.killpg(self.pid, signal.SIGCONT)  # a stopped process would not handle SIGTERM
            elif self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, signum)
            else:
                os.kill(self.pid, signum)

    def warn(self, text: str, *, question: int = 0, holds_cells: bool = False) -> None:
        """Show *text*, a sentence, in its notebook, as the answer to its user's *question* if not 0.

        *holds_cells* is as in :class:`~sharedkernel.protocol.Notice`.
        """
        log.warning("session %s of %s: %s", self.session, self.user, text)
        self.send(protocol.Notice(text=text, question=question, holds_cells=holds_cells))

    @property
    def has_read_all(self) -> bool:
        """Whether it is connected, and nothing that it was sent still waits for it to read on."""
        return self.transport is not None and self.transport.get_write_buffer_size() == 0

    @property
    def lingers(self) -> float | None:
        """Seconds for which it still lingers; None: it was not shut down."""
        return None if self.lingers_until is None else max(0.0, self.lingers_until - time.monotonic())

    def record(self) -> SessionRecord:
        """Return what a gateway needs to adopt it."""
        return msgspec.convert(self, SessionRecord, from_attributes=True)

    def kept(self) -> PersistedSession:
        """Return what the next executor needs to know."""
        return msgspec.convert(self, PersistedSession, from_attributes=True)


def describe_end(process: SessionHandle, status: int | None) -> protocol.SessionDied:
    """Describe how a session's process ended, for the gateway and in one sentence for its user.

    Parameters
    ----------
    process
        The one that ended.
    status
        As `os.waitpid` gives it; None when nobody could tell.
    """
    code = signum = None
    reason = "crashed"
    if status is None:
        message = "Your session ended; how, nobody could tell (its parent process was gone)."
    elif signum := status & 0x7F:
        name = signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"
        message = f"Your session was ended by {name} ({signal.strsignal(signum)})."
        if signum == signal.SIGKILL:
            reason = "killed"
            message += " When nobody did this on purpose, the machine had run out of memory."
    else:
        code = status >> 8
        reason = "exited"
        message = f"Your session's process exited by itself with code {code}."
    if process.end_reason is not None:
        reason, message = process.end_reason
    elif process.end_asked:
        reason, message = "asked", "Your session was shut down."
    else:
        message += " Its variables are gone; other sessions are not affected."
    assert process.session is not None
    return protocol.SessionDied(
        session=process.session,
        incarnation=process.incarnation,
        code=code,
        signum=signum or None,
        reason=reason,
        message=message,
    )


def id_of(process: SessionHandle) -> SessionId:
    """Return the id that the scheduling core knows a process's session by."""
    assert process.session
    return SessionId(process.session)


def profile_of(memory: Memory) -> MemoryProfile:
    """Return *memory* as the scheduling core takes it."""
    return MemoryProfile(**msgspec.structs.asdict(memory))


def start_time(pid: int) -> int | None:
    """Return when process *pid* started, in clock ticks since boot; None if it is not there.

    Raises
    ------
    OSError
        When that cannot be found out now, as without a free descriptor.
    """
    stat = read_stat(pid)
    return None if stat is None or stat.state == "Z" else stat.started


def seen_status(process: SessionHandle) -> int | None:
    """Return the wait status of a process that has ended but is not reaped yet; None if it cannot be read."""
    with contextlib.suppress(OSError):
        stat = read_stat(process.pid)
        if stat is not None and stat.started == process.started:
            return stat.status or None
    return None
