"""The status document, whose names are a contract, and what of it a user may see.

It is built from three sources: the core's snapshot, what the executor remembers of sessions and users, and the words
that each session writes into its shared page, which are newer than what it last reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.dispatch.usage import UserRecord
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.shared_page import Word
from sharedkernel.protocol import Device
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.snapshot import LaneView, SessionView, Snapshot, UserView
from sharedkernel.status.document import visible_to


class StatusBuilder:
    """Builds the document from the present state.

    Parameters
    ----------
    served, controller
        What is shared, and who has it.
    """

    def __init__(self, served: ServedDevice, controller: SessionController) -> None:
        self._served = served
        self._controller = controller

    def document(self) -> dict[str, Any]:
        """Return the whole document, nothing hidden."""
        controller = self._controller
        users = controller.users.records
        return build_status(self._served, controller.config, controller.snapshot(), controller.sessions, users)

    def view(self, user: str) -> dict[str, Any]:
        """Return what *user*, who is no admin, may see, with the last minutes."""
        return {**visible_to(self.document(), user), "timeline": self._controller.timeline(user)}


def build_status(
    served: ServedDevice,
    config: SchedulerConfig,
    snapshot: Snapshot,
    processes: Mapping[str, SessionHandle],
    users: Mapping[str, UserRecord],
) -> dict[str, Any]:
    """Return the whole document, nothing hidden; bytes and seconds as the names say."""
    device = served.device
    sessions = [_session(view, processes[view.id]) for view in snapshot.sessions]
    return {
        "device": {
            "name": device.name,
            "kind": device.kind,
            "capacity_bytes": device.capacity_bytes,
            "reserve_bytes": device.reserve_bytes,
            "used_bytes": sum(
                entry["persistent_bytes"] + entry["framework_bytes"] + entry["live_bytes"] for entry in sessions
            )
            + snapshot.shelf,
            "policy": config.policy,
            "quantum_seconds": config.quantum,
            **served.status(),
        },
        "lanes": [_lane(view) for view in snapshot.lanes],
        "users": [
            _user(view, users[view.id], device, [entry for entry in sessions if entry["user"] == view.id])
            for view in snapshot.users
            if view.id in users
        ],
        "sessions": sessions,
    }


def _lane(view: LaneView) -> dict[str, Any]:
    return {"id": view.id, "size_bytes": view.size, "holder": view.holder, "queue": list(view.queue)}


def _session(view: SessionView, process: SessionHandle) -> dict[str, Any]:
    now = time.monotonic()
    return {
        "id": view.id,
        "user": view.user,
        "state": str(view.state),
        "kernel_id": process.kernel or view.id,
        "lingering": process.lingers_until is not None,
        "lingering_seconds": None if process.lingers_until is None else max(0.0, process.lingers_until - now),
        "idle_seconds": 0.0 if process.used_at is None else now - process.used_at,
        "notebook": process.notebook,
        "client_key": process.client_key,
        "lane": view.lane,
        "lane_note": process.lane_note,
        "persistent_bytes": process.shown(Word.PERSISTENT),
        # Before the end of a session's first iteration no peak is known, but what lives now is no less of it.
        "ephemeral_bytes": max(process.shown(Word.EPHEMERAL), process.shown(Word.LIVE)),
        "framework_bytes": process.shown(Word.FRAMEWORK),
        "live_bytes": process.shown(Word.LIVE),
        "offloaded_bytes": process.offload.bytes,
        "offload_note": process.offload.stayed or process.offload.declined,
        "offloads": process.offload.num_offloads,
        "restores": process.offload.num_restores,
        "offload_seconds": process.offload.offload_seconds,
        "restore_seconds": process.offload.restore_seconds,
        "iterations": process.shown(Word.ITERATIONS),
        "iteration_seconds": view.iteration_seconds,
        "attained_service_seconds": view.attained,
        "ungranted_service_seconds": process.ungranted,
        "queue_position": view.queue_position,
        "waiting_for": view.waiting_for,
        "memory_wait_seconds": view.memory_wait_seconds,
        "remaining_seconds": view.remaining_seconds,
        "remaining_from": view.remaining_from,
        "utilisation": view.utilisation,
        "utilisation_predicted": view.utilisation_predicted,
        "slowdown": view.slowdown,
        "slowdown_predicted": view.slowdown_predicted,
        **_percentiles(process.wait.past),
    }


def _user(view: UserView, record: UserRecord, device: Device, sessions: list[dict[str, Any]]) -> dict[str, Any]:
    usable = device.capacity_bytes - device.reserve_bytes
    return {
        "name": view.id,
        "share": view.share,
        "quota_bytes": usable if view.quota is None else view.quota,
        "persistent_bytes": sum(entry["persistent_bytes"] for entry in sessions),
        "ephemeral_bytes": sum(entry["ephemeral_bytes"] for entry in sessions),
        "framework_bytes": sum(entry["framework_bytes"] for entry in sessions),
        "shelf_bytes": view.shelf,
        "offloaded_bytes": sum(entry["offloaded_bytes"] for entry in sessions),
        "attained_service_seconds": record.attained_before + view.attained,
        "iterations": record.iterations_before + sum(entry["iterations"] for entry in sessions),
        "peak_bytes": record.peak_bytes,
        **_percentiles(record.waits),
    }


def _percentiles(waits: Sequence[float]) -> dict[str, float | None]:
    """Return how long grants were waited for; None before the first."""
    if not waits:
        return {"wait_p50_seconds": None, "wait_p95_seconds": None}
    # numpy's import would be waited for at every start; a single wait is all there is to tell, twice
    marks = statistics.quantiles(waits if len(waits) > 1 else 2 * list(waits), n=20, method="inclusive")
    return {"wait_p50_seconds": marks[9], "wait_p95_seconds": marks[18]}
