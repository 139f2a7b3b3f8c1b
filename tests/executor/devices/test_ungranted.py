"""Who uses the device beyond their grants: charged for it and told, with some patience for figures that come late."""

from __future__ import annotations

import pytest

from sharedkernel.executor.devices.cuda.monitor import Ungranted
from tests.executor.devices.support import Recorder, make_process

#: ids that no process has
P, Q = 1 << 28, 1 << 29


def look_at_two() -> tuple[Recorder, Ungranted]:
    """Return what is done to the sessions p and q (processes P and Q), and who looks at them."""
    recorder = Recorder(make_process("p", pid=P), make_process("q", pid=Q))
    return recorder, Ungranted(recorder)


def charged(recorder: Recorder, name: str) -> float:
    """Return the device-seconds that session *name* was charged."""
    return sum(value for what, who, value in recorder.done if (what, who) == ("charge", name))


async def test_what_is_used_beyond_grants_is_charged() -> None:
    """To who used it, from the third second on; who only used their turns is not charged."""
    recorder, ungranted = look_at_two()
    for _ in range(10):
        recorder.served["session-q"] += 1.0
        ungranted.look(recorder.sessions(), {P: 0.5, Q: 1.0, Q + 1: 1.0})
    assert charged(recorder, "p") == pytest.approx(10 * 0.5 - 2.0)
    assert charged(recorder, "q") == 0
    assert recorder.attained() == {"session-p": pytest.approx(3.0), "session-q": 10.0}


async def test_figures_may_come_a_look_late() -> None:
    """Turns that are over when their use is told charge nobody, however many there are."""
    recorder, ungranted = look_at_two()
    for _ in range(100):
        recorder.served["session-p"] += 1.0
        ungranted.look(recorder.sessions(), {})
        ungranted.look(recorder.sessions(), {P: 1.0})
    assert recorder.done == []


async def test_what_was_granted_and_not_used_saves_up_little() -> None:
    """An hour of turns that kept the device idle gives no hour of use without them."""
    recorder, ungranted = look_at_two()
    ungranted.look(recorder.sessions(), {})
    recorder.served["session-p"] += 3600.0
    for seconds in (0.0, 10.0):
        ungranted.look(recorder.sessions(), {P: seconds})
    assert charged(recorder, "p") == 8.0


async def test_the_notebook_is_told_and_not_each_second() -> None:
    """When it has come to some seconds, and each time that has doubled."""
    recorder, ungranted = look_at_two()
    for _ in range(100):
        ungranted.look(recorder.sessions(), {P: 1.0})
    told = [(who, text) for what, who, text in recorder.done if what == "warn"]
    assert [who for who, _ in told] == ["p"] * 5
    assert "has used the device for 5.0 s outside its turns" in told[0][1]
    assert "1 m 20 s" in told[-1][1]
