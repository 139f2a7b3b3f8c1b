"""Short text for people from the status document, shared by the terminal tables and the widgets.

Names of users and notebooks come from other people: everything shown passes :func:`safe_text` first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import UnsetType

from sharedkernel.status.document import DeviceStatus, LaneStatus, SessionStatus, StatusDocument
from sharedkernel.units import format_bytes, format_seconds

#: the executor's name for the processor, with how many cores it has
_PROCESSOR = re.compile(r"host \((\d+) x .*\)")
#: what stands where there is nothing to tell
NOTHING = "-"

#: why a session waits, by the document's ``waiting_for``
_REASONS = {
    "memory": "for memory",
    "lane": "for its turn",
    "quota": "for its user's quota",
    "restore": "to be restored",
}
#: states in which a session has the device, and those in which no code of it runs
RUNNING = ("running", "preempting")
_AT_REST = ("idle", "offloaded")


def safe_text(text: object) -> str:
    r"""Return *text* with everything that is not printable written out, so that no terminal obeys it.

    >>> print(safe_text("a\x1b[31mb\u202ec"))
    a\x1b[31mb\u202ec
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in str(text)
    )


def ordinal(number: int) -> str:
    """Return *number* as ``1st``, ``2nd``, ``3rd``, ``4th``."""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def session_name(session: SessionStatus) -> str:
    """Return what to call a session: its notebook's file name, else the start of its id."""
    notebook = session.notebook
    return safe_text(str(notebook).replace("\\", "/").rsplit("/", 1)[-1] if notebook else str(session.id)[:8])


def session_state(session: SessionStatus) -> str:
    """Return a session's state in a few words.

    With its place in the queue or what is moved away: ``running``, ``computing in a thread``, ``2nd in line``,
    ``waits for memory``, ``offloaded 512 MiB``, ``shut down, ~9 m left``. Of several hosts a wait has its host, too:
    ``2nd in line on h2``.
    """
    if session.lingering and session.state in _AT_REST:
        words, left = _end_words(session), session.lingering_seconds
        return words if left is None else f"{words}, {about(left)} left"
    position, reason = session.queue_position, session.waiting_for
    if session.state == "offloaded" or (session.state == "restoring" and position is None):
        amount = session.offloaded_bytes
        return f"{session.state} {format_bytes(amount)}" if amount else safe_text(session.state)
    if position is not None:
        why = f" ({reason})" if reason not in (None, "lane") else ""
        return f"{ordinal(position)} in line{why}{_on_host(session)}"
    if reason is not None:
        return f"waits {_REASONS.get(reason, safe_text(reason))}{_on_host(session)}"
    if session.threads and session.state == "running":
        return "computing in a thread" if session.threads == 1 else f"computing in {session.threads} threads"
    return safe_text(session.state)


def _on_host(session: SessionStatus) -> str:
    return f" on {safe_text(session.host)}" if session.host else ""


def device_on_host(entry: SessionStatus | LaneStatus) -> str:
    """Return the device of a session or lane without its host, such as ``cuda:1`` of ``h2/cuda:1``."""
    return (entry.device or "").removeprefix(f"{entry.host}/")


def lingering_words(session: SessionStatus) -> str | None:
    """Return what to know of a session that was shut down or restarted and can be brought back; None for any other."""
    if not session.lingering:
        return None
    left = session.lingering_seconds
    stays = "is still there" if left is None else f"stays for {about(left)}"
    has = f"; it still has {safe_text(', '.join(session.still_has))}, until it is ended" if session.still_has else ""
    return f"{_end_words(session)}; {stays}, `%shared attach` in its notebook brings it back{has}"


def programs_words(session: SessionStatus) -> str | None:
    """Return a session's programs on the device: ``train.py, 2 processes, 3.1 GiB``; None: there are none."""
    words = []
    for program in session.programs:
        processes = "1 process" if program.processes == 1 else f"{program.processes} processes"
        note = f" (takes no turns: {safe_text(program.note)})" if program.note else ""
        words.append(f"{safe_text(program.name)}, {processes}, {format_bytes(program.bytes)}{note}")
    return "; ".join(words) or None


def _end_words(session: SessionStatus) -> str:
    return "kept after a restart" if session.restarted else "shut down"


def device_title(device: DeviceStatus) -> str:
    """Return what to call a device: a processor, which is there to try things out, says so."""
    cores = _PROCESSOR.fullmatch(device.description or device.name)
    if device.kind != "host" or cores is None:
        return safe_text(device.name)
    return f"CPU ({cores[1]} core{'s' * (cores[1] != '1')}), demo device"


def queue_sentence(session: SessionStatus, status: StatusDocument) -> str:
    """Return one sentence about where a session stands: what it waits for, its place, and who is running.

    Parameters
    ----------
    session
        Its entry of *status*.
    status
        The status document of its device.
    """
    position, reason = session.queue_position, session.waiting_for
    amount = format_bytes(session.offloaded_bytes or 0)
    if session.state == "offloaded":
        return f"Nothing of this notebook waits. {amount} of it are moved away; its next cell brings them back."
    if session.state == "restoring" and position is None:
        return f"This notebook's cell starts when its memory is back: {amount} are on their way."
    if position is None and reason is None:
        return {
            "running": "This notebook has the device.",
            "preempting": "This notebook has the device and is about to give it to somebody else.",
            "ready": "A cell is running; it is not using the device.",
        }.get(session.state, "Nothing of this notebook waits.")
    why = _REASONS.get(reason or "lane", safe_text(reason))
    place = f", {ordinal(position)} in line" if position is not None else ""
    running = sorted({safe_text(other.user) for other in status.sessions if other.state == "running"})
    holders = f"; running now: {', '.join(running)}" if running else ""
    return f"This notebook waits {why}{place}{holders}."


def expected_waits(
    sessions: Sequence[Any], *, foreseen_by: str | UnsetType | None, quantum: float
) -> dict[str, float | None]:
    """Return how long the waits of sessions will likely last.

    Where everybody gets turns, those before a session get one each, of a quantum or an iteration, whichever is longer.
    Where cells run to their end, it is what those before it still need, if that was declared or is known from earlier
    runs. Those that run side by side share the wait. For memory it is what the executor foresees: when those that keep
    it have had it for long enough, and how long moving takes.

    Parameters
    ----------
    sessions
        All of a device that wait or run: of the status document, or of the scheduler's snapshot, whose names are the
        same.
    foreseen_by
        The device's `waits_foreseen_by`.
    quantum
        The device's; seconds.

    Returns
    -------
    dict
        Seconds by session, of those that wait; None where nobody can tell.
    """
    running = [session for session in sessions if session.state in RUNNING]
    waiting = [session for session in sessions if session.waiting_for is not None and session.state not in RUNNING]
    queued = [session for session in waiting if session.waiting_for == "lane"]
    waits: dict[str, float | None] = {session.id: session.memory_wait_seconds for session in waiting}
    waits |= dict.fromkeys((session.id for session in queued), None)
    if not foreseen_by:
        return waits
    work: float | None = 0.0
    queued = [session for session in queued if session.queue_position is not None]
    for number, session in enumerate((*running, *sorted(queued, key=lambda session: session.queue_position))):
        if number >= len(running):
            waits[session.id] = None if work is None else work / max(1, len(running))
        if foreseen_by == "turns":
            needs: float | None = max(quantum, session.iteration_seconds or 0.0)
        else:
            needs = session.remaining_seconds if session.remaining_from in ("declared", "earlier") else None
        work = None if work is None or needs is None else work + needs
    return waits


def notebook_in_words(user: str, notebook: str | None, *, is_own: bool, is_idle: bool) -> str:
    """Return a notebook as another one's user may see it, such as ``grace's idle notebook``.

    Parameters
    ----------
    user, notebook
        Whose it is, and its path, if it is known.
    is_own
        Whether the reader is its user.
    is_idle
        Whether nothing runs in it.
    """
    kind = "idle notebook" if is_idle else "notebook"
    if not is_own:
        return f"{safe_text(user)}'s {kind}"
    name = safe_text((notebook or "").replace("\\", "/").rpartition("/")[2])
    return f"your {kind} {name}".rstrip()


def wait_outlook(session: SessionStatus, status: StatusDocument) -> str | None:
    """Return a sentence about how long a session will likely wait.

    Parameters
    ----------
    session
        Its entry of *status*.
    status
        The status document of its device.

    Returns
    -------
    str or None
        None when it does not wait, or nobody can tell.
    """
    if session.waiting_for is None and session.queue_position is None:
        return None
    device = status.device
    waits = expected_waits(status.sessions, foreseen_by=device.waits_foreseen_by, quantum=device.quantum_seconds)
    expected = waits.get(session.id)
    maker = None if session.room_from is None else status.session(session.room_from)
    if maker is not None:
        own = maker.user == session.user
        who = notebook_in_words(maker.user, maker.notebook, is_own=own, is_idle=maker.state == "idle")
        when = "soon" if expected is None else f"in about {format_seconds(expected)}"
        return f"{who[:1].upper()}{who[1:]} makes room {when}."
    return None if expected is None else f"Expected wait: about {format_seconds(expected)}."


def about(seconds: float) -> str:
    """Return a duration in five characters, as exact as a prediction is: ``~40 s``, ``~3 m``, ``~2 h``, ``~9 d``."""
    for unit, length, most in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 48), ("d", 86400, 99)):
        amount = round(seconds / length)
        if amount < most or unit == "d":
            break
    return f"~{min(amount, most)} {unit}"
