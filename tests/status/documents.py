"""Status documents as an executor would send them."""

from __future__ import annotations

from typing import Any

import msgspec

from sharedkernel.status.document import SessionStatus, StatusDocument, UserStatus, read_status

MIB = 1 << 20
GIB = 1 << 30


def session(id: str, user: str, state: str = "idle", **fields: Any) -> SessionStatus:
    """Return a session's record."""
    known = {"id": id, "user": user, "state": state, "kernel_id": id, "framework_bytes": 30 * MIB, **fields}
    return msgspec.convert(known, SessionStatus)


def user(name: str, **fields: Any) -> UserStatus:
    """Return a user's record."""
    return msgspec.convert({"name": name, **fields}, UserStatus)


def document(**fields: Any) -> StatusDocument:
    """Return a document of a quiet device, with *fields* instead of its parts."""
    device = {
        "name": "a processor",
        "kind": "host",
        "capacity_bytes": 4 * GIB,
        "reserve_bytes": 256 * MIB,
        "used_bytes": GIB,
        "policy": "fair",
        "waits_foreseen_by": "turns",
        "quantum_seconds": 0.05,
    }
    return read_status(to_json({"device": device, **fields}), "a test")


def changed(status: StatusDocument, **fields: Any) -> StatusDocument:
    """Return *status* with *fields* instead of its parts."""
    return read_status(to_json(status) | to_json(fields), "a test")


def to_json(value: Any) -> Any:
    """Return what is read from the JSON of a document or a part of one."""
    return msgspec.to_builtins(value)


def busy_document() -> StatusDocument:
    """Return a document with a running, a queued and a waiting session, and long names."""
    long_name = "grace.with.a.rather.long.name@example.org"
    return document(
        lanes=[
            {"id": 1, "size_bytes": 512 * MIB, "holder": "a1", "queue": ["b2", "c3"]},
            {"id": 2, "size_bytes": 1023 * MIB, "holder": None, "queue": []},
        ],
        users=[
            user("ada", quota_bytes=2 * GIB, persistent_bytes=900 * MIB, quota_used_bytes=996 * MIB, share=2.5),
            user(long_name, attained_service_seconds=7265.0, wait_p95_seconds=0.25),
            user("hedy"),
        ],
        sessions=[
            session("a1", "ada", "running", lane=1, notebook="/home/ada/deep/cnn_training_with_a_long_name.ipynb",
                    persistent_bytes=900 * MIB, ephemeral_bytes=96 * MIB, iterations=1234567),
            session("b2", long_name, "queued", lane=1, notebook="sweep.ipynb", queue_position=1, waiting_for="lane"),
            session("c3", "hedy", "waiting", queue_position=2, waiting_for="memory"),
        ],
    )  # fmt: skip
