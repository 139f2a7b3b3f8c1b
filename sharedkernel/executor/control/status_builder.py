"""The status document, whose names are a contract, and what of it a user may see, once or again and again.

It is built from three sources: the core's snapshot, what the executor remembers of sessions and users, and the words
that each session writes into its shared page, which are newer than what it last reported.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from sharedkernel import protocol
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.dispatch.users import UserRecord
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.sanitize import believe_iterations
from sharedkernel.executor.processes.user_quota import quota_of, used_by
from sharedkernel.scheduling.policies.registry import POLICIES
from sharedkernel.scheduling.snapshot import SessionView, UserView
from sharedkernel.status.document import (
    DeviceStatus,
    LaneStatus,
    ProgramStatus,
    SessionStatus,
    StatusDocument,
    UserStatus,
    WatchedStatus,
    pack_part,
)
from sharedkernel.status.timeline import TimelineWindow
from sharedkernel.system.tasks import BackgroundTasks

#: how long the figures in sessions' pages count as new
_FRESH_SECONDS = 0.05
#: the timeline in a watching session's document: its window, and most sessions
_LAST_MINUTES, _MOST_ROWS = TimelineWindow(seconds=150.0, columns=60), 8
#: figures of a session that its view from the core has under the same names
_OF_CORE = (
    "id", "user", "lane", "iteration_seconds", "queue_position", "waiting_for", "memory_wait_seconds", "room_from",
    "remaining_seconds", "remaining_from", "time_left_seconds", "utilisation", "utilisation_predicted", "slowdown",
    "slowdown_predicted",
)  # fmt: skip
#: the shortest interval between two views, seconds
_SHORTEST = 0.1


class StatusBuilder:
    """Builds the document from the present state.

    Parameters
    ----------
    served, isolation, controller
        What is shared, how users are kept apart, and who has it.
    """

    def __init__(self, served: ServedDevice, isolation: Isolation, controller: SessionController) -> None:
        self._served = served
        self._isolation = isolation
        self._controller = controller
        self._document: StatusDocument | None = None
        #: of the controller when that was built, and until when its figures count as new, on `time.monotonic`'s axis
        self._revision, self._fresh_until = 0, 0.0

    def document(self) -> StatusDocument:
        """Return the whole document, nothing hidden; all who ask share it for as long as its figures are fresh."""
        now, revision = time.monotonic(), self._controller.driver.revision
        if self._document is None or self._revision != revision or now > self._fresh_until:
            self._document, self._revision = self._build(), revision
            self._fresh_until = time.monotonic() + _FRESH_SECONDS
        return self._document

    def view(self, user: str) -> WatchedStatus:
        """Return what *user*, who is no admin, may see, with the last minutes."""
        visible = self.document().visible_to(user)
        timeline = self._controller.timeline(_LAST_MINUTES, user, most_rows=_MOST_ROWS)
        return WatchedStatus(**msgspec.structs.asdict(visible), timeline=timeline)

    def forget(self) -> None:
        """Build the document anew next time: something has changed that is no event of the core."""
        self._document = None

    def _build(self) -> StatusDocument:
        snapshot, users, device = self._controller.snapshot(), self._controller.users.records, self._served.device
        sessions = [_session(view, self._controller.sessions[view.id]) for view in snapshot.sessions]
        by_user: defaultdict[str, list[SessionStatus]] = defaultdict(list)
        for entry in sessions:
            by_user[entry.user].append(entry)
        used = sum(entry.persistent_bytes + entry.framework_bytes + entry.live_bytes for entry in sessions)
        return StatusDocument(
            device=self._device(min(used + snapshot.shelf, device.capacity_bytes)),
            lanes=[
                LaneStatus(id=view.id, size_bytes=view.size, holder=view.holder, queue=list(view.queue))
                for view in snapshot.lanes
            ],
            users=[
                _user(view, record, device, by_user[view.id])
                for view in snapshot.users
                if (record := users.get(view.id)) is not None and (record.sessions or view.shelf or not record.has_left)
            ],
            sessions=sessions,
        )

    def _device(self, used_bytes: int) -> DeviceStatus:
        """Return what the device is and how it is scheduled."""
        config = self._controller.driver.scheduler.config
        policy = POLICIES[config.policy]
        return DeviceStatus(
            used_bytes=used_bytes,
            policy=config.policy,
            quantum_seconds=config.quantum,
            **{
                **msgspec.structs.asdict(self._served.device),
                **msgspec.structs.asdict(self._served.details()),
                "isolation": self._isolation.kind,
                "isolation_note": self._isolation.sentence,
                "policy_summary": policy.summary,
                "waits_foreseen_by": policy.foreseen_by,
            },
        )


def _session(view: SessionView, process: SessionHandle) -> SessionStatus:
    now = time.monotonic()
    wait_p50, wait_p95 = process.wait.past.percentiles()
    live = process.live_bytes
    return SessionStatus(
        **{name: getattr(view, name) for name in _OF_CORE},
        state=str(view.state),
        kernel_id=process.kernel or view.id,
        lingering=process.lingers_until is not None,
        lingering_seconds=process.lingers,
        restarted=process.restarted,
        still_has=list(process.activity or ()) if process.lingers_until is not None else [],
        idle_seconds=0.0 if process.used_at is None else now - process.used_at,
        used=process.used,
        notebook=process.notebook,
        client_key=process.client_key,
        threads=process.num_threads,
        programs=[
            ProgramStatus(name=each.name, processes=len(each.pids), bytes=each.bytes, note=each.exempt)
            for each in process.programs
        ],
        lane_note=process.lane_note,
        # What is about to be restored is charged before it is there.
        persistent_bytes=max(view.persistent, process.persistent_bytes),
        ephemeral_bytes=live,
        iteration_bytes=view.ephemeral,
        framework_bytes=view.framework,
        live_bytes=live,
        offloaded_bytes=view.offloaded,
        offload_note=process.offload.stayed or process.offload.declined,
        offloads=process.offload.num_offloads,
        restores=process.offload.num_restores,
        offload_seconds=process.offload.offload_seconds,
        restore_seconds=process.offload.restore_seconds,
        iterations=believe_iterations(process.page, view.attained),
        attained_service_seconds=view.attained,
        ungranted_service_seconds=process.ungranted,
        needed_bytes=view.needed,
        free_bytes=view.free,
        wait_p50_seconds=wait_p50,
        wait_p95_seconds=wait_p95,
    )


def _user(view: UserView, record: UserRecord, device: protocol.Device, sessions: Sequence[SessionStatus]) -> UserStatus:
    wait_p50, wait_p95 = record.waits.percentiles()
    live = sum(entry.live_bytes for entry in sessions)
    return UserStatus(
        name=view.id,
        colour=record.limits.colour or UNSET,
        share=view.share,
        quota_bytes=quota_of(record.limits, device),
        persistent_bytes=sum(entry.persistent_bytes for entry in sessions),
        ephemeral_bytes=live,
        framework_bytes=sum(entry.framework_bytes for entry in sessions),
        live_bytes=live,
        shelf_bytes=view.shelf,
        quota_used_bytes=view.shelf + used_by(record.sessions.values()),
        offloaded_bytes=sum(entry.offloaded_bytes for entry in sessions),
        attained_service_seconds=record.totals.attained + view.attained,
        iterations=record.totals.iterations + sum(entry.iterations for entry in sessions),
        server_bytes=record.server_bytes,
        peak_bytes=record.totals.peak_bytes,
        wait_p50_seconds=wait_p50,
        wait_p95_seconds=wait_p95,
    )


class StatusStream:
    """Sends views to sessions while they watch; needs a running event loop.

    Parameters
    ----------
    view
        Returns what a user may see now.
    tasks
        Background tasks.
    """

    def __init__(self, view: Callable[[str], StatusDocument], tasks: BackgroundTasks) -> None:
        self._view = view
        self._tasks = tasks
        #: by process
        self._watching: dict[str, asyncio.Task[None]] = {}

    def watch(self, process: SessionHandle, interval: float) -> None:
        """Send a view to *process* every *interval* seconds from now on; 0: none any more."""
        self.forget(process)
        if interval > 0:
            self._watching[process.process] = self._tasks.spawn(self._send(process, max(_SHORTEST, interval)))

    def forget(self, process: SessionHandle) -> None:
        """Send *process* nothing any more."""
        if (watching := self._watching.pop(process.process, None)) is not None:
            watching.cancel()

    async def _send(self, process: SessionHandle, interval: float) -> None:
        while process.user is not None:
            if process.has_read_all:  # a view is worth nothing once there is a newer one
                process.send(protocol.View(status=pack_part(self._view(process.user))))
            await asyncio.sleep(interval)
