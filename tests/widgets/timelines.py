"""The last minutes as an executor would send them, of ten seconds."""

from __future__ import annotations

from typing import Any

BINS = 10


def percents(*values: int) -> list[int]:
    """Return a value for each second; the last one given holds from then on."""
    return [*values, *[values[-1]] * (BINS - len(values))]


def strip(session: str | None, user: str | None, *values: int) -> dict[str, Any]:
    """Return how much of each second a session ran."""
    percent = percents(*values)
    return {"session": session, "user": user, "seconds": sum(percent) / 100, "percent": percent}


def track(lane: int | None, *sessions: dict[str, Any]) -> dict[str, Any]:
    """Return a lane's track."""
    return {"track": lane or 9, "lane": lane, "sessions": list(sessions)}


def wait(session: str, activity: str, *values: int) -> dict[str, Any]:
    """Return what else a session of the viewer's did."""
    percent = percents(*values)
    return {"session": session, "activity": activity, "seconds": sum(percent) / 100, "percent": percent}


def timeline(*tracks: dict[str, Any], own: list[dict[str, Any]] | None = None, more: int = 0) -> dict[str, Any]:
    """Return the whole document."""
    return {
        "bin_seconds": 1.0,
        "bins": BINS,
        "tracks": list(tracks),
        "more_tracks": more,
        "own": own or [],
        "num_waiting": [0.0] * BINS,
    }
