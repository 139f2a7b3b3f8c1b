"""Sentences for refused memory, with figures and what to do; shared by executors, sessions and the simulator."""

from __future__ import annotations

from sharedkernel.errors import Shortage
from sharedkernel.units import format_bytes, format_seconds

_FREE = "free tensors that you do not need"


def explain_quota(
    what: str,
    quota: int,
    *,
    sessions: int,
    shelf: int | None = None,
    are_others: bool = False,
    more: str = "",
    outcome: str = "Nothing was lost",
    advice: str = f"{_FREE}, or shut down another of your notebooks",
) -> str:
    """Return why a user's quota does not allow something.

    Parameters
    ----------
    what
        Begins the sentence: what was wanted.
    quota, sessions
        The user's quota, and what their sessions have of it; bytes.
    shelf
        What their shelf has of it; bytes. None: not mentioned.
    are_others
        Whether *sessions* are the user's other ones.
    more
        Further figures, with what separates them from those before.
    outcome, advice
        What has become of it, and what the user can do.
    """
    parts = [f"your quota is {format_bytes(quota)}"]
    parts.append(f"{'your other sessions use' if are_others else 'your sessions use'} {format_bytes(sessions)}")
    if shelf is not None:
        parts.append(f"your shelf {format_bytes(shelf)}")
    return f"{what}: {', '.join(parts)}{more}. {outcome}: {advice}."


def explain_shortage(shortage: Shortage) -> str:
    """Return why the core has refused memory, for the user of the session.

    Parameters
    ----------
    shortage
        The figures of the refusal.
    """
    match shortage.reason:
        case "quota":
            assert shortage.quota is not None
            return explain_quota(
                _what(shortage), shortage.quota, sessions=shortage.sessions, shelf=shortage.shelf or None
            )
        case "no_lane_fits":
            return _explain_device(shortage)
        case "memory" if shortage.purpose == "context":
            return (
                f"this notebook's first operation on the device takes {format_bytes(shortage.wanted or 0)} for a "
                f"context, but only {_describe_free(shortage)}; each notebook that uses the device keeps one until it "
                "is shut down or restarted. Try again after that."
            )
        case "memory":
            return _explain_wait(shortage)


def _what(shortage: Shortage) -> str:
    """Return what is wanted, as the beginning of a sentence."""
    wanted = shortage.wanted
    if shortage.purpose == "restore":
        return f"bringing back this notebook's offloaded memory takes {format_bytes(wanted or 0)}"
    return f"this needs {f'{format_bytes(wanted)} more while it runs' if wanted else 'more memory'}"


def _explain_device(shortage: Shortage) -> str:
    room, capacity = format_bytes(max(0, shortage.room)), format_bytes(shortage.capacity)
    reserve = format_bytes(shortage.reserve)
    if shortage.purpose == "restore":
        return (
            f"{_what(shortage)}, but the device has {room} for it ({reserve} of {capacity} are held back); ask for a "
            "larger device, or restart the notebook."
        )
    wanted = "memory" if shortage.wanted is None else format_bytes(shortage.wanted)
    return (
        f"this needs {wanted} while it runs, but the device has {room} beside what this notebook keeps "
        f"({format_bytes(shortage.kept)} of {capacity}, {reserve} held back); free tensors or use smaller batches."
    )


def _explain_wait(shortage: Shortage) -> str:
    if shortage.purpose == "restore":
        wanted = f"{format_bytes(shortage.wanted or 0)} for its offloaded memory"
    elif shortage.purpose == "growth":
        wanted = f"{format_bytes(shortage.wanted or 0)} more than it has"
    else:
        wanted = "memory" if shortage.wanted is None else f"{format_bytes(shortage.wanted)} while it runs"
    return (
        f"this needs {wanted}, but only {_describe_free(shortage)}; "
        "free tensors, use smaller batches, or try again when other notebooks have finished or were offloaded."
    )


def _describe_free(shortage: Shortage) -> str:
    """Return what is free, and who keeps the rest."""
    parts = [f"user {name} keeps {format_bytes(size)}" for name, size in shortage.holders]
    parts.append(f"{format_bytes(shortage.lanes)} are set aside for iterations")
    free = f"{format_bytes(max(0, shortage.free))} of {format_bytes(shortage.capacity)}"
    after = f" after {format_seconds(shortage.waited)} of waiting" if shortage.waited else ""
    return f"{free} are free{after}: {', '.join(parts)}"
