"""How long waits are expected to last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.status.document import SessionStatus
from sharedkernel.status.text import expected_waits

FORESEEN_BY = ("turns", "ends", None)
seconds = st.none() | st.floats(0.0, 100.0)
sessions = st.lists(
    st.builds(
        SessionStatus,
        id=st.just(""),
        user=st.just("ada"),
        state=st.sampled_from(["idle", "running", "preempting", "queued", "queued"]),
        iteration_seconds=seconds,
        memory_wait_seconds=seconds,
        remaining_seconds=seconds,
        remaining_from=st.sampled_from(["declared", "earlier", "residual"]),
    ),
    max_size=12,
)


def number(drawn: list[SessionStatus], waits_for: list[str]) -> list[SessionStatus]:
    """Return the sessions with names, and those that wait with what for and their places."""
    numbered, position = [], 0
    for at, session in enumerate(drawn):
        fields = {name: getattr(session, name) for name in session.__struct_fields__}
        fields["id"] = f"session-{at}"
        if session.state == "queued":
            position += 1
            fields |= {"waiting_for": waits_for[at % len(waits_for)], "queue_position": position}
        numbered.append(SessionStatus(**fields))
    return numbered


def expected(session: SessionStatus, everybody: list[SessionStatus], foreseen_by: str | None) -> float | None:
    """Return what is expected of one session, by looking at all others."""
    if session.waiting_for != "lane":
        return session.memory_wait_seconds
    running = [other for other in everybody if other.state in ("running", "preempting")]
    position = session.queue_position or 0
    before = [o for o in everybody if o.waiting_for == "lane" and (o.queue_position or 0) < position]
    if foreseen_by == "turns":
        needs: list[float | None] = [max(0.05, other.iteration_seconds or 0.0) for other in (*running, *before)]
    else:
        needs = [None if o.remaining_from == "residual" else o.remaining_seconds for o in (*running, *before)]
    if foreseen_by is None or None in needs:
        return None
    return sum(need or 0.0 for need in needs) / max(1, len(running))


@given(
    sessions,
    st.lists(st.sampled_from(["lane", "lane", "memory"]), min_size=3, max_size=3),
    st.sampled_from(FORESEEN_BY),
)
def test_going_along_the_queue_once_gives_each_its_wait(
    drawn: list[SessionStatus], waits_for: list[str], foreseen_by: str | None
) -> None:
    """As if for each session all others were looked at, in whatever order they come."""
    everybody = number(drawn, waits_for)
    waits = expected_waits(everybody[::-1], foreseen_by=foreseen_by, quantum=0.05)
    assert waits == {
        session.id: None if (wait := expected(session, everybody, foreseen_by)) is None else pytest.approx(wait)
        for session in everybody
        if session.waiting_for is not None
    }
