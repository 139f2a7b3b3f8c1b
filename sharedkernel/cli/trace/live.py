"""A recording of what happens now, from a gateway's status documents: for everybody who may see them.

Documents are asked for ten times a second, so turns shorter than that are seen only by chance; what is exact is the
device time that each session was served from one document to the next, which becomes a counter.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sharedkernel.cli.trace.document import Recording
from sharedkernel.errors import SharedKernelError
from sharedkernel.scheduling.spans import Activity, Span, SpanTracker
from sharedkernel.status.document import DeviceEntry, SessionStatus, StatusDocument
from sharedkernel.status.text import session_name

#: seconds between two documents
INTERVAL = 0.1

_ACTIVITIES = {
    "running": Activity.RUNNING,
    "preempting": Activity.RUNNING,
    "queued": Activity.QUEUED,
    "waiting": Activity.WAITING,
    "offloaded": Activity.OFFLOADED,
}


class LiveRecorder:
    """Makes a recording of status documents."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._tracker = SpanTracker(self._spans.append)
        self._lanes: dict[str, int | None] = {}
        #: the lanes of the last document
        self._present: set[int] = set()
        self._names: dict[str, str] = {}
        self._memory: list[tuple[float, int]] = []
        self._shares: dict[str, list[tuple[float, float]]] = {}
        self._served: dict[str, tuple[float, float]] = {}
        self._times: list[float] = []

    def take(self, now: float, status: StatusDocument) -> None:
        """Record one document.

        Parameters
        ----------
        now
            When it was received, seconds on any monotonic clock.
        status
            The status document of one device.
        """
        self._times.append(now)
        self._memory.append((now, status.device.used_bytes))
        lanes = {lane.id for lane in status.lanes}
        self._tracker.remove_lanes(self._present - lanes)
        self._present = lanes
        for session in status.sessions:
            name, activity = session.id, activity_of(session)
            self._names[name] = f"{session.user} {session_name(session)}"
            self._serve(now, session)
            if activity is not self._tracker.activity(name) or session.lane != self._lanes.get(name):
                self._lanes[name] = session.lane
                self._tracker.change(
                    now,
                    name,
                    session.user,
                    activity,
                    lane=session.lane,
                    iterations=session.iterations,
                )
        for gone in set(self._tracker.sessions()) - {session.id for session in status.sessions}:
            self._tracker.end(now, gone)

    def _serve(self, now: float, session: SessionStatus) -> None:
        name, served = session.id, session.attained_service_seconds
        since, before = self._served.get(name, (now, served))
        self._served[name] = now, served
        shares = self._shares.setdefault(name, [])
        if now > since and (served > before or (shares and shares[-1][1] > 0)):
            # A counter holds from its time on: this is what was served since the document before.
            shares.append((since, 100 * (served - before) / (now - since)))

    def recording(self, device: str = "", host: str = "") -> Recording:
        """Return what was taken in, of *device* on *host*."""
        end = self._times[-1]
        return Recording(
            device=device,
            host=host,
            begin=self._times[0],
            end=end,
            spans=[*self._spans, *self._tracker.under_way(end)],
            names=self._names,
            memory=self._memory,
            shares=self._shares,
            notes={
                "source": "status documents of a gateway",
                "seconds_between_documents": INTERVAL,
                "documents": len(self._times),
            },
        )


def activity_of(session: SessionStatus) -> Activity | None:
    """Return what a session of a status document does; None for what is not told."""
    if session.state == "restoring":
        return Activity.AWAITING_RESTORE if session.queue_position is not None else Activity.RESTORING
    return _ACTIVITIES.get(session.state)


def record_live(fetch: Callable[[], StatusDocument], seconds: float, *, device: str = "") -> list[Recording]:
    """Return what happens on each device in the next *seconds*; Ctrl-C ends it early.

    Parameters
    ----------
    fetch
        Returns the status document.
    seconds
        How long.
    device
        Only this one, or those of a host of this name; empty: all, those of each host together.

    Raises
    ------
    SharedKernelError
        When not a single document could be had, or there is no such device. A gateway or an executor that goes away for
        a while only leaves a gap.
    """
    recorders: dict[str, LiveRecorder] = {}
    hosts: dict[str, str] = {}

    def take(status: StatusDocument) -> None:
        now = time.monotonic()
        hosts.update({entry.name: entry.host for entry in status.devices or () if entry.host})
        for name, document in status.only_device(device).items():
            if not isinstance(document, DeviceEntry):
                recorders.setdefault(name, LiveRecorder()).take(now, document)

    take(fetch())
    end = time.monotonic() + seconds
    try:
        while (now := time.monotonic()) < end:
            time.sleep(min(INTERVAL, end - now))
            try:
                status = fetch()
            except SharedKernelError:
                continue
            take(status)
    except KeyboardInterrupt:
        pass
    if not recorders:
        raise SharedKernelError("the device's executor does not answer, so there is nothing to record; start it first.")
    # A host that comes later has its place among the others, and one host's devices stay in their order.
    names = sorted(recorders, key=lambda name: hosts.get(name, ""))
    return [recorders[name].recording(name, hosts.get(name, "")) for name in names]
