"""The scheduler of one device: events in, actions out.

One door
    :meth:`Scheduler.handle` takes an event and returns actions. Nothing else changes the scheduler. It never reads a
    clock: `now` comes with each event and never goes back. :meth:`Scheduler.next_deadline` says when to call
    again with a `Tick` if nothing else happens. The same log of `(now, event)` leads to the same actions under any
    driver.

Facts and decisions
    Sessions report facts; the scheduler decides. Memory is not free once it is asked back, but once its holder reports
    that it is free: a session whose grant was revoked is `preempting`, with lane and memory still charged. Events whose
    session is in a state that does not allow them raise :class:`~sharedkernel.errors.InvalidTransition` and change
    nothing. `model/transitions.py` has both tables.

Four questions, each with its modules
    *May it have memory?* `memory/admission.py`, with `memory/demand.py` for what each queued session needs,
    `memory/lanes.py` for the layout and `memory/ledger.py` for the sums. *Who makes room for it?* `memory/reclaim.py`
    takes lanes, `memory/offloading.py` offloads idle memory, `memory/memory_turns.py` that of running cells. *Who is
    served next?* `steps/dispatch.py`, in the order of a policy (`policies/`). *How much was each served?*
    `policies/accounting.py`. All of them read and write the same `steps/records.py`. An event is first written there
    (`steps/handlers.py`), then the records are *reconciled* (`steps/reconcile.py`): lanes are corrected, queued
    sessions admitted as far as they fit, grants given and revoked, and idle sessions offloaded for those still queued.
    `steps/apply.py` applies each decision.

Interrupted iterations
    A grant that was released in the middle of an iteration leaves live bytes in its lane. The lane belongs to that
    session until the iteration has ended, or until its live bytes are *parked*: charged beside all lanes. Parked bytes
    do not count to the session's need of a lane. At its next boundary nothing is live, and the charge ends.

Offloading and restoring
    An idle session that is asked to offload stays charged until it reports that it has, or that it will not; if a cell
    opens before that, the session is simply ready. A cell of an offloaded session is `restoring`: in the memory queue
    until there is room, then being restored, and charged from the moment that it may start. If the cell ends before
    that, the session is offloaded as before. It may exceed the quota by the slack that the host device gives:
    what was given comes back. Restoring never takes the room that open cells need for their lanes: notebooks restored
    side by side would otherwise wait for each other's memory, neither able to run.

Predictions
    A session that ran before wants the lane that the same code needed then. If other code needed it, that is a *guess*:
    if it cannot be had soon, the session takes what is free, as one whose need is not known. No prediction counts
    against a quota (`quota_check.py` says what does), and a cell that goes on without asking for more is not refused
    because other notebooks of its user have grown.

Detached sessions
    A session that was shut down or restarted is kept only to be had back. It counts for no quota, and is the first to
    be offloaded for others. The driver ends it if it cannot be, which frees as much.

Memory turns
    If idle memory is not enough, sessions take turns on the device's memory: one whose memory quantum is over is
    evicted, releases its grant at its next boundary (or is called to its gate), and enters the queue for its own
    memory. `memory/memory_turns.py` says which session, when, and what a waiting one is promised.

Growth
    An iteration, or a cell, that needs more than it has releases its grant and waits in the memory queue, with its
    lane. The bytes that it gets are parked beside the lane, and released at its next boundary, when its need is
    measured. It goes before others, the oldest first, but not beyond the capacity: after `growth_patience` it is
    refused, and at once if nothing is going on that could help and no session can be offloaded. So sessions that
    grow cannot block each other.

    Sessions may come to wait, in the middle of their cells, for each other's memory. Then the latest of them is
    offloaded whole, and restored when there is room for its memory and its shortfall. If it cannot be offloaded only
    the end of a cell can help: one that grows is refused at once, any other after `growth_patience`.

The safety condition
    Persistent and framework memory of all sessions + shelves + parked bytes + all lanes + the reserve ≤ capacity, and
    each lane is at least as large as the largest need among its sessions: a session's measured ephemeral memory, less
    its parked bytes. Whatever runs, its iteration can then finish, so the device cannot deadlock.
    Decisions never break it. Facts can: a session may turn out to hold more than was predicted. Then, after each event:

    - Memory in use stays. A lane in which something runs, or in which an interrupted iteration is live, keeps its size
      until it is empty; only the session whose iteration it is may need more than that.
    - A parked iteration can end: its session keeps a lane for the rest of it, or, if memory was reclaimed from it, gets
      one when no other lane is left, even if the sum then exceeds the capacity.
    - Everything else is given up. While the sum exceeds the capacity other empty lanes shrink if they have unmeasured
      sessions, then sessions are sent back to the memory queue, the latest arrival first, until the sum fits or none is
      left. No other session is admitted meanwhile.

    So the condition holds, or every lane is in use or owed to an interrupted iteration; the tests check that after
    every event.
"""

from __future__ import annotations

from collections.abc import Collection

from sharedkernel.errors import InvalidTransition
from sharedkernel.scheduling.model.actions import Action, RemoveLane
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.events import Event, SessionEvent
from sharedkernel.scheduling.model.transitions import TRANSITIONS
from sharedkernel.scheduling.model.types import LaneId, SessionId, SessionState
from sharedkernel.scheduling.snapshot import Snapshot, take_snapshot
from sharedkernel.scheduling.steps.apply import Decisions
from sharedkernel.scheduling.steps.handlers import EventHandlers
from sharedkernel.scheduling.steps.reconcile import Reconciler
from sharedkernel.scheduling.steps.records import Records


class Scheduler:
    """Decides who uses one device, and how its memory is divided.

    Parameters
    ----------
    config
        How; see :class:`SchedulerConfig`.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        records = self._records = Records(config)
        #: all live sessions, the lanes, the charges, and the holders of grants with their service; read-only
        self.sessions, self.lanes = records.sessions, records.lanes
        self.ledger, self.clock = records.ledger, records.clock
        #: lanes that the last event removed
        self.removed_lanes: list[LaneId] = []
        decisions = Decisions(records)
        self._handlers = EventHandlers(records, decisions)
        self._reconciler = Reconciler(records, decisions)

    @property
    def is_contended(self) -> bool:
        """Whether a session holds a grant that others wait for, and would be asked for it where it is idle."""
        return self._records.is_contended

    # --- the door -----------------------------------

    def handle(self, event: Event, *, now: float) -> list[Action]:
        """Handle an event and return the actions that follow, in order.

        Parameters
        ----------
        event
            What happened.
        now
            When, in seconds; not before the event handled last.

        Raises
        ------
        InvalidTransition
            When the session's state does not allow the event; nothing has changed then.
        ValueError
            When *now* goes back; nothing has changed then.
        """
        if now < self.clock.now:
            raise ValueError(f"time went back from {self.clock.now} to {now}.")
        if isinstance(event, SessionEvent):
            self._check(event)
        self._records.begin(event)
        self.clock.accrue(now)
        self._handlers.handle(event)
        self._reconciler.reconcile()
        actions = self._records.actions[:]
        self._records.actions.clear()
        self.removed_lanes = [action.lane for action in actions if isinstance(action, RemoveLane)]
        return actions

    def next_deadline(self) -> float | None:
        """Return when to handle a `Tick` if nothing else happens before; None: time alone changes nothing."""
        return self._reconciler.next_deadline()

    # --- what can be seen -----------------------------------

    @property
    def config(self) -> SchedulerConfig:
        """The present configuration."""
        return self._records.config

    @property
    def touched(self) -> Collection[SessionId]:
        """The sessions that the last event concerned, or changed the state of; one that ended is among them."""
        return self._records.touched

    def snapshot(self, now: float) -> Snapshot:
        """Return the views of all sessions, users and lanes at *now*, seconds; changes nothing."""
        return take_snapshot(self._records, now)

    def needed(self, session: SessionId) -> int | None:
        """Return the bytes that *session* waits for; None if it waits for no memory, or only for its turn."""
        waiting = self._records.admission.waiting.get(session)
        lack = None if waiting is None else self._records.admission.demand.lack(waiting)
        return None if lack is None else lack[0]

    def attained(self, now: float) -> dict[str, float]:
        """Return each session's attained service at *now*, seconds; device-seconds."""
        elapsed = max(0.0, now - self.clock.now)
        held = {holder: elapsed for holder in self.clock.holders}
        return {session.id: session.service.attained + held.get(session.id, 0.0) for session in self.sessions.values()}

    @property
    def has_queue(self) -> bool:
        """Whether any session wants the device or memory."""
        return bool(self._records.queued or self._records.admission.waiting)

    def story(self, session: SessionId) -> list[str]:
        """Return *session*'s recent history, oldest first; empty for an unknown one."""
        known = self.sessions.get(session)
        return [] if known is None else [f"{when:.6f} {what}: {state}" for when, what, state in known.story]

    def _check(self, event: SessionEvent) -> None:
        session = self.sessions.get(event.session)
        state = SessionState.DEAD if session is None else session.state
        if (state, type(event)) not in TRANSITIONS:
            raise InvalidTransition(event.session, state, type(event).__name__, self.story(event.session))
