"""Made-up status documents, whose figures add up as those of an executor do, and what a gateway tells beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from sharedkernel.gateway.fleet.rules import COLOURS

MIB, GIB = 1 << 20, 1 << 30
#: a name that must not become a part of a page
MARKUP = "<img src=x onerror=\"document.body.dataset.broken='yes'\">"
COMMAND = "pip install jupyter-sharedkernel\nsharedkernel install https://gpu-host:8585"
NAMES = ["ada", "grace", "linus", *(f"student{number:02}" for number in range(1, 28))]
_KINDS = ("persistent_bytes", "ephemeral_bytes", "framework_bytes")


def memory_of_users(sessions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return each user's memory by kind: sums over their sessions."""
    users: dict[str, dict[str, int]] = {}
    for session in sessions:
        memory = users.setdefault(session["user"], dict.fromkeys(_KINDS, 0))
        for kind in _KINDS:
            memory[kind] += session.get(kind, 0)
    return users


def in_use(memory: Mapping[str, int]) -> int:
    """Return how much of a user's memory is in use now."""
    return sum(memory[kind] for kind in _KINDS)


def session(number: int, user: str, state: str, gib: float = 0.5, **fields: Any) -> dict[str, Any]:
    """Return a session that has *gib* of memory between iterations."""
    live = int(gib / 4 * GIB) if state == "running" else 0
    memory = {"persistent_bytes": int(gib * GIB), "ephemeral_bytes": live, "framework_bytes": 30 * MIB}
    names = {"id": f"0123456789{number:02}", "kernel_id": f"kernel-{number}", "notebook": f"notebook{number}.ipynb"}
    return {"user": user, "state": state, "idle_seconds": 60.0 * number, **names, **memory, **fields}


def document(*sessions: dict[str, Any]) -> str:
    """Return a status document of a GPU of 24 GiB whose figures add up."""
    users = memory_of_users(sessions)
    device = {
        "name": "NVIDIA L4",
        "kind": "cuda",
        "capacity_bytes": 24 * GIB,
        "used_bytes": sum(map(in_use, users.values())),
        "policy": "fair",
        "utilisation": 0.83,
        "temperature_celsius": 61.0,
        "power_watts": 58.3,
        "power_limit_watts": 72.0,
    }
    running = [entry["id"] for entry in sessions if entry["state"] == "running"]
    queued = [entry["id"] for entry in sessions if entry["state"] == "queued"]
    lane = {"id": 1, "size_bytes": GIB, "holder": running[0] if running else None, "queue": queued}
    return json.dumps(
        {
            "device": device,
            "lanes": [lane],
            "users": [
                {"name": user, "colour": colour, "share": 1.0, "quota_bytes": 8 * GIB, **memory}
                for colour, (user, memory) in zip(cycle(COLOURS), users.items(), strict=False)
            ],
            "sessions": sessions,
        }
    )


def of_users(count: int) -> str:
    """Return a document in which *count* users run, wait and idle; ada, grace and linus are among them."""
    size = 3.8 if count == 3 else 0.6
    students = [session(number, NAMES[number - 7], "idle", size / 2 + number / 100) for number in range(10, 7 + count)]
    for student in students[::4]:
        student.update(state="offloaded", offloaded_bytes=student["persistent_bytes"], persistent_bytes=0)
    large = session(4, "linus", "waiting", size, notebook="large.ipynb", queue_position=3, waiting_for="memory")
    sessions = [
        session(0, "ada", "idle", size, notebook="explore.ipynb"),
        session(1, "ada", "queued", size / 2, notebook="fine-tuning.ipynb", queue_position=2, waiting_for="lane"),
        session(2, "grace", "running", size, notebook="train.ipynb", time_left_seconds=130.0),
        session(3, "grace", "queued", size / 3, notebook="plots.ipynb", queue_position=1, waiting_for="lane"),
        large,
        *students,
    ]
    device = json.loads(document(*sessions))["device"]
    free_bytes = device["capacity_bytes"] - device["used_bytes"]
    large.update(free_bytes=free_bytes, needed_bytes=free_bytes + GIB // 2, memory_wait_seconds=26.0)
    large.update(room_from=sessions[0]["id"])
    return document(*sessions)


def timeline_of(said: str) -> dict[str, Any]:
    """Return what the sessions of a document did in two minutes: turns, waits for memory, pauses, offloads."""
    rows = []
    for place, entry in enumerate(json.loads(said)["sessions"][:24]):
        segments: list[list[Any]] = []
        at = float(3 * (place % 7))
        while at < 112:
            if entry["state"] == "offloaded":
                segments += [
                    [at, at + 1.5, {"offloading": 1.5}, None],
                    [at + 1.5, 120, {"offloaded": 118.5 - at}, None],
                ]
                break
            if place % 3 == 2:
                segments.append([at, at + 4, {"running": 1.9, "queued": 2.1}, None])
            else:
                segments += [[at, at + 2, {"queued": 2.0}, None], [at + 2, at + 5, {"running": 3.0}, None]]
            at += 8 + 5 * (place % 4)
        if entry["state"] == "waiting":
            segments = [*segments[:4], [70, 120, {"waiting": 50.0}, 6 << 30]]
        rows.append(
            {**{name: entry[name] for name in ("user", "notebook")}, "session": entry["id"], "segments": segments}
        )
    begin = 1_790_000_000.0
    device = {"device": None, "begin": begin, "end": begin + 120, "oldest": begin, "rows": rows, "more_rows": 0}
    return {"devices": [device]}


def history_of(said: str) -> dict[str, Any]:
    """Return an hour in which a document's users came one after the other, and the executor was away for a while."""
    status = json.loads(said)
    device, users = status["device"], {}
    for place, entry in enumerate(status["users"]):
        wave = [1 + 0.3 * math.sin(step / (9 + 5 * place)) for step in range(360)]
        users[entry["name"]] = [
            int(in_use(entry) * wave[step]) if step > 25 * place % 300 else 0 for step in range(360)
        ]
    used: list[int | None] = [sum(values[step] for values in users.values()) for step in range(360)]
    used[150:165] = [None] * 15
    told = dict(sorted(users.items(), key=lambda entry: -sum(entry[1]))[:8])
    busy = [0.5 + 0.4 * math.sin(step / 11) for step in range(360)]
    shown = {"name": device["name"], "capacity_bytes": device["capacity_bytes"], "used_bytes": used}
    return {"step_seconds": 10, "devices": [{**shown, "utilisation": busy, "users": told}]}


def limits_of(memory: str, source: str = "config: default") -> dict[str, Any]:
    return {"memory": {"value": memory, "source": source}, "share": {"value": 1.0}, "sessions": {"value": None}}
