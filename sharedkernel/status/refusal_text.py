"""The sentences of refusals: what was wanted, the figures of the quota or the device, and what to do.

Gateway, executor, session and simulator take their sentence from here when they refuse memory, or a session for want of
quota. Whether something is refused is decided elsewhere (`quota_check.py`).
"""

from __future__ import annotations

from sharedkernel.protocol import Allowance
from sharedkernel.quota_check import QuotaUse, Shortage
from sharedkernel.units import format_bytes, format_seconds

_FREE = "free what you no longer need (`del name`)"
_ADVICE = f"{_FREE}, or shut down another of your notebooks, and run the cell again"
_ADVICE_FOR_ONE = f"{_FREE}, and run the cell again"


def _explain_quota(
    what: str,
    use: QuotaUse,
    *,
    are_others: bool = False,
    more: str = "",
    outcome: str = "Nothing was lost",
    advice: str = _ADVICE,
) -> str:
    """Return why a user's quota does not allow something.

    Parameters
    ----------
    what
        Begins the sentence: what was wanted.
    use
        The quota, and what counts against it.
    are_others
        Whether the sessions are the user's other ones.
    more
        Further figures, with what separates them from those before.
    outcome, advice
        What has become of it, and what the user can do.
    """
    parts = [f"your quota is {format_bytes(use.quota or 0)}"]
    parts.append(f"{'your other sessions use' if are_others else 'your sessions use'} {format_bytes(use.sessions)}")
    if use.shelf:
        parts.append(f"your shelf {format_bytes(use.shelf)}")
    return f"{what}: {', '.join(parts)}{more}. {outcome}: {advice}."


def explain_lease(what: str, allowance: Allowance, *, waits_again: bool = False) -> str:
    """Return why a session cannot have more than its lease.

    Parameters
    ----------
    what
        Begins the sentence: what the session uses, or wanted.
    allowance
        The lease, with the figures of the quota, and of the device if that is what the quota has no room on.
    waits_again
        Whether the same cell, run again, waits for the memory that it lacked.
    """
    rest = max(0, allowance.capacity_bytes - allowance.limit_bytes - allowance.others_bytes)
    holders = ", ".join(f"{user} {format_bytes(size)}" for user, size in allowance.holders if size)
    advice = (
        "run the cell again: it then waits until others have given that memory back. Or free what you no longer need "
        "(`del name`) first"
    )
    of_device = (
        f", the device has {format_bytes(allowance.capacity_bytes)}, of which the sessions of others and what "
        f"every session's process needs take {format_bytes(rest)}{f' ({holders})' if holders else ''}"
    )
    use = QuotaUse(quota=allowance.quota_bytes, sessions=allowance.others_bytes)
    is_quota = allowance.limit_bytes >= allowance.quota_bytes - allowance.others_bytes
    own_advice = _ADVICE if allowance.others_bytes or not is_quota else _ADVICE_FOR_ONE
    return _explain_quota(
        f"{what}, and may use {format_bytes(allowance.limit_bytes)}",
        use,
        are_others=True,
        more="" if is_quota else of_device,
        advice=advice if waits_again else own_advice,
    )


def explain_private_memory(wanted: int, used: int, limit: int) -> str:
    """Return why a session cannot have more private memory of a GPU.

    Parameters
    ----------
    wanted, used, limit
        Bytes that it asked for, that it has, and that were leased to it.
    """
    return (
        f"this session has {format_bytes(used)} and asked for {format_bytes(wanted)} more, but may use only "
        f"{format_bytes(limit)}."
    )


def explain_no_pause(wanted: int) -> str:
    """Return why an iteration cannot wait for *wanted* bytes."""
    return (
        f"{format_bytes(wanted)} more device memory were needed in the middle of an iteration that cannot be "
        f"interrupted now. Nothing was lost: {_FREE} and run the cell again."
    )


def explain_shelf_shortage(name: str, size: int, *, left: int, use: QuotaUse | None, replaced: int | None) -> str:
    """Return why something does not fit on a shelf.

    Parameters
    ----------
    name, size
        What was to be shelved, and its bytes.
    left
        Bytes that would fit.
    use
        The user's quota, if that is too small; None: the device is.
    replaced
        Bytes of what has that name now; None: nothing has.
    """
    what = f"{name!r} needs {format_bytes(size)} on the shelf, and {format_bytes(left)} are left"
    outcome = "Nothing was changed"
    advice = 'free what you no longer need (`del name`, `del shelf["name"]`) and shelve it again'
    if replaced is not None:
        advice += f"; `del shelf[{name!r}]` frees the {format_bytes(replaced)} that it would replace"
    if use is None:
        return f"{what}: sessions and shelves of all users have the rest. {outcome}: {advice}."
    return _explain_quota(what, use, outcome=outcome, advice=advice)


def describe_overuse(outside: int, beyond: int, quota: int, *, on_host: bool = False) -> str:
    """Return what a session holds outside torch beyond its user's quota, as the object of a sentence.

    Parameters
    ----------
    outside, beyond, quota
        Bytes that it holds there, of these beyond the quota, and the quota.
    on_host
        Whether the device is the processor, where shared memory and programs that the session started count.
    """
    where = "in shared memory, programs and mappings of its own" if on_host else "on the device outside PyTorch"
    return (
        f"{format_bytes(outside)} {where}, {format_bytes(beyond)} beyond what your quota of {format_bytes(quota)} "
        "leaves"
    )


def explain_session_limit(user: str, allowed: int, existing: int) -> str:
    """Return why *user*, who may have *allowed* sessions and has *existing*, cannot start another."""
    return (
        f"{user} may have {allowed} session{'s' * (allowed != 1)} at a time and has {existing}; shut down one of them "
        "(in the panel Shared GPU, or its notebook's Kernel menu), or ask the admin for more."
    )


def explain_shortage(shortage: Shortage) -> str:
    """Return why the core has refused memory, for the user of the session.

    Parameters
    ----------
    shortage
        The figures of the refusal.
    """
    match shortage.reason:
        case "quota":
            return _explain_quota(_what(shortage), shortage.use)
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
    need = {"restore": "for its offloaded memory", "growth": "more than it has"}.get(shortage.purpose, "while it runs")
    wanted = "memory" if shortage.wanted is None else f"{format_bytes(shortage.wanted)} {need}"
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
