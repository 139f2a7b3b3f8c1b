"""Who waits for memory, who is refused, and that nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.scheduling.model.actions import CreateLane, ForceYield, Grant, RemoveLane, ResizeLane, Revoke
from sharedkernel.status.refusal_text import explain_shortage
from tests.scheduling.desk import Desk, refused
from tests.scheduling.device import endless, run


def test_a_full_quota_refuses_with_figures(sched: Desk) -> None:
    """What all of a user's sessions keep counts, framework memory does not; the session lives on."""
    sched.user("ada", quota=500)
    sched.start("ada1", framework=300)
    sched.start("ada2")
    sched.measure("ada1", persistent=500)
    sched.open("ada2")
    refusal = refused(sched.want("ada2"))
    assert (refusal.session, refusal.shortage.reason) == ("ada2", "quota")
    assert "your quota is 500 B, your sessions use 500 B" in explain_shortage(refusal.shortage)
    assert sched.state("ada2") == "ready"
    sched.measure("ada1", persistent=400)
    assert sched.want("ada2") == [CreateLane(lane=1, size=100, domain="all"), Grant(session="ada2", lane=1)]


def test_a_prediction_refuses_nothing_and_growth_over_the_quota_is_refused(sched: Desk) -> None:
    """What a cell needed once it may not need again; what it asks for counts with what is live and kept."""
    sched.user("ada", quota=500)
    assert sched.begin("ada", ephemeral=300, persistent=201)[-1] == Grant(session="ada", lane=1)
    refusal = refused(sched.grow("ada", 60, live=240)[-1:])
    assert refusal.shortage.reason == "quota"
    assert "60 B more while it runs" in explain_shortage(refusal.shortage)
    assert "your sessions use 441 B" in explain_shortage(refusal.shortage)
    assert sched.want("ada", growth=59)[-1] == Grant(session="ada", lane=1)


def test_nobody_waits_for_a_guess(sched: Desk) -> None:
    """Other code needed so much; what runs now takes what is free, and asks for more where it needs more."""
    sched.start("ada", "bob")
    sched.measure("bob", persistent=700)
    sched.open("ada")
    assert sched.want("ada", 600, is_guess=True)[-1] == Grant(session="ada", lane=1)
    assert sched.scheduler.snapshot(0.0).lanes[0].size == 300
    sched.finish("ada")
    sched.open("ada")
    sched.want("ada", 600)
    assert sched.state("ada") == "waiting", "its own code did"


def test_what_an_open_section_is_known_to_need_counts_once(sched: Desk) -> None:
    """Growth of one notebook cannot take what another's iterations need; two that take turns need it once."""
    sched.user("ada", quota=500)
    sched.ready("ada1", "ada2", "ada3")
    for name in ("ada1", "ada2"):
        sched.want(name, 200, persistent=50)
        sched.release(name, needed=200)
    sched.want("ada3")
    refusal = refused(sched.grow("ada3", 201)[-1:])
    assert "your sessions use 300 B" in explain_shortage(refusal.shortage)
    sched.close("ada1")
    sched.close("ada2")
    (*_, grant) = sched.want("ada3", growth=400)
    assert isinstance(grant, Grant)


def test_a_cell_that_asks_for_nothing_new_is_not_refused(sched: Desk) -> None:
    """Whatever another notebook of its user has taken meanwhile; the next cell is told."""
    sched.user("ada", quota=500)
    sched.start("ada1", "ada2")
    sched.open("ada1")
    sched.want("ada1", 100, persistent=100)
    sched.release("ada1")
    sched.measure("ada2", persistent=600)
    assert sched.want("ada1")[-1] == Grant(session="ada1", lane=1)
    sched.finish("ada1")
    sched.open("ada1")
    assert refused(sched.want("ada1")).shortage.reason == "quota"


def test_what_the_device_could_never_give_is_refused(make_sched: Callable[..., Desk]) -> None:
    """A need beyond the empty device is not kept waiting."""
    sched = make_sched(reserve=100)
    sched.ready("ada", framework=50)
    refusal = refused(sched.want("ada", 651, persistent=200))
    assert refusal.shortage.reason == "no_lane_fits"
    assert "651 B" in explain_shortage(refusal.shortage)
    assert "650 B" in explain_shortage(refusal.shortage)
    assert sched.want("ada", 650)[-1] == Grant(session="ada", lane=1)


def test_a_lowered_quota_holds_at_once(sched: Desk) -> None:
    """Cells that have not begun are refused; one that has goes on with what it has."""
    sched.start("ada1", "ada2")
    sched.measure("ada1", persistent=250)
    sched.begin("ada1", "ada2", ephemeral=300)
    sched.start("bob")
    refusal = refused(sched.user("ada", quota=200)[:1])
    assert (refusal.session, sched.state("ada2"), sched.state("ada1")) == ("ada2", "ready", "running")
    assert sched.pause("ada1")[-1] == Grant(session="ada1", lane=1)


def hog(sched: Desk) -> None:
    """Let a session of another domain run with more than half of the device."""
    sched.begin("ada", ephemeral=600, domain="x")


def test_one_who_was_overtaken_gets_a_reservation(make_sched: Callable[..., Desk]) -> None:
    """After `overtake_patience` nobody who came later is admitted before it, not even where nothing is reclaimed."""
    sched = make_sched(policy="fifo", backfill=True)
    hog(sched)
    sched.begin("bob", ephemeral=500)
    sched.at(1.0).begin("cleo", ephemeral=100)
    assert sched.state("cleo") == "queued"
    sched.at(5.9).begin("dan", ephemeral=100)
    assert sched.state("dan") == "queued"
    sched.at(6.0).begin("eve", ephemeral=100)
    assert sched.state("eve") == "waiting"
    assert [sched.view(name).queue_position for name in ("bob", "cleo", "dan", "eve")] == [1, 2, 3, 4]
    actions = sched.finish("ada")
    assert CreateLane(lane=4, size=500, domain="all") in actions
    assert (sched.state("bob"), sched.state("eve")) == ("running", "queued")


def test_one_whom_no_lane_could_help_holds_nobody_up(sched: Desk) -> None:
    """Who waits for memory that notebooks keep gets no reservation: others' waiting would not help."""
    sched.keep("ada", size=600)
    sched.begin("bob", ephemeral=500)
    for number in range(10):
        sched.at(sched.now + 3.0).begin(f"cleo{number}", ephemeral=10)
        assert sched.view(f"cleo{number}").lane is not None
    assert sched.state("bob") == "ready"  # and is told so, since what ada keeps cannot be moved
    sched.end("ada")
    sched.want("bob")
    assert sched.state("bob") == "queued"


def test_memory_is_reclaimed_from_cells_that_do_not_end(sched: Desk) -> None:
    """Domains that do not fit side by side take turns, at boundaries, instead of waiting for each other's cells."""
    hog(sched)
    sched.begin("bob", ephemeral=500)
    assert sched.tick_at_deadline() == [Revoke(session="ada")]
    assert sched.now == 5.0
    assert sched.release("ada") == [
        RemoveLane(lane=1),
        CreateLane(lane=2, size=500, domain="all"),
        Grant(session="bob", lane=2),
    ]
    assert sched.want("ada") == []
    assert (sched.state("ada"), sched.view("ada").queue_position) == ("waiting", 1)
    assert sched.scheduler.next_deadline() == 10.0


def test_what_a_signal_interrupts_is_parked_for_one_whose_memory_is_due(sched: Desk) -> None:
    """A cell without boundaries cannot keep others' memory for ever: its live bytes are kept apart, its lane goes."""
    hog(sched)
    sched.begin("bob", ephemeral=500)
    sched.tick(5.0)
    assert sched.tick_at_deadline() == [ForceYield(session="ada")]
    assert sched.release("ada", "yield", live=400) == [
        RemoveLane(lane=1),
        CreateLane(lane=2, size=500, domain="all"),
        Grant(session="bob", lane=2),
    ]
    assert sched.session("ada").iteration.parked == 400
    sched.want("ada")
    assert sched.state("ada") == "waiting"
    # The rest of its iteration needs 200 bytes, which is more than is left; and then 600 again.
    assert sched.finish("bob") == [
        RemoveLane(lane=2),
        CreateLane(lane=3, size=200, domain="x"),
        Grant(session="ada", lane=3),
    ]
    assert sched.release("ada", iterations=1) == [ResizeLane(lane=3, size=600)]
    assert sched.session("ada").iteration.parked == 0


def test_domains_that_do_not_fit_together_share_the_time() -> None:
    """Two endless trainings, each too large to be beside the other, get half of the device each."""
    device = run(
        [endless("ada", 0.1, ephemeral=700, domain="x"), endless("bob", 0.03, ephemeral=700, domain="y")], until=100
    )
    assert device.desk.attained("ada") == pytest.approx(50, abs=6)
    assert device.desk.attained("ada") + device.desk.attained("bob") == pytest.approx(100)


def test_facts_may_exceed_the_capacity(sched: Desk) -> None:
    """When notebooks come to keep more than there is, lanes are given up and nobody new runs until it fits again."""
    sched.begin("ada", ephemeral=100)
    sched.begin("bob", ephemeral=100)
    assert sched.release("ada", persistent=950) == [RemoveLane(lane=2), RemoveLane(lane=1)]
    assert sched.state("bob") == "waiting"
    assert sched.measure("ada", persistent=1050) == []
    assert sched.begin("cleo", ephemeral=0) == []
    assert sched.scheduler.ledger.used == 1050
    assert sched.close("ada", persistent=0) == [
        CreateLane(lane=3, size=100, domain="all"),
        CreateLane(lane=4, size=0, domain="all"),
        Grant(session="bob", lane=3),
    ]


def test_the_latest_to_come_gives_way_first(sched: Desk) -> None:
    """Only as many lose their lanes as must."""
    for name in ("ada", "bob", "cleo"):
        sched.begin(name, ephemeral=300)
    sched.start("dan")
    # and then shares another's lane
    assert sched.measure("dan", persistent=150) == [RemoveLane(lane=3)]
    assert [sched.view(name).lane for name in ("ada", "bob", "cleo")] == [1, 2, 1]


def test_what_runs_keeps_its_lane_whatever_others_keep(sched: Desk) -> None:
    """A fact about another session takes nothing from an iteration that is running."""
    sched.begin("ada", ephemeral=900)
    sched.start("bob")
    assert sched.measure("bob", persistent=500) == []
    assert sched.scheduler.ledger.used == 1400
    assert sched.release("ada") == [RemoveLane(lane=1)]


def test_a_context_is_charged_with_the_first_grant_or_refused_soon(sched: Desk) -> None:
    """Others' contexts stay on the device, so a session waits only briefly if they leave no room for its own."""
    sched.start("ada", "bob", "cleo", framework=300)
    assert sched.begin("dan", context=300) == []
    refusal = refused(sched.tick_at_deadline())
    assert sched.now <= 6.0
    assert "takes 300 B for a context" in explain_shortage(refusal.shortage)
    assert sched.view("dan").framework == 0
    sched.end("ada")
    assert Grant(session="dan", lane=1) in sched.want("dan", context=300)
    assert sched.view("dan").framework == 300


def test_one_that_waited_in_vain_waits_no_second_time(sched: Desk) -> None:
    """Its code catches the error and asks again: at once refused, until it has freed some, or in another cell."""
    sched.start("ada", framework=300)
    sched.begin("bob", ephemeral=0)
    assert sched.release("bob", persistent=750) == [RemoveLane(lane=1)]
    assert sched.want("bob", 50) == []
    assert refused(sched.tick_at_deadline()).shortage.waited > 0.0
    asked_again = sched.now
    for _ in range(3):
        assert refused(sched.want("bob", 0)).shortage.reason == "memory"
    assert sched.now == asked_again
    assert Grant(session="bob", lane=2) in sched.want("bob", 50, persistent=600)
    # In the next cell it may wait again: others have had time to give memory back.
    sched.finish("bob", persistent=750)
    sched.open("bob")
    assert sched.want("bob", 50) == []
    assert refused(sched.tick_at_deadline()).shortage.waited > 0.0


def test_a_context_that_is_charged_before_its_lane_fits_counts_for_all(sched: Desk) -> None:
    """Another session's memory made room for the context alone; the lane comes with a boundary soon."""
    sched.start("ada", "eve")
    sched.start("dan", domain="other")
    sched.begin("ada", ephemeral=600)
    sched.measure("eve", persistent=250)
    sched.open("dan")
    sched.want("dan", context=300)
    assert sched.view("dan").framework == 0
    sched.measure("eve", persistent=100)  # each event ends with a look at all sums
    assert (sched.state("dan"), sched.view("dan").framework) == ("waiting", 300)


def test_no_boundary_is_asked_for_that_leaves_no_room_for_a_context(sched: Desk) -> None:
    """Or the one who runs would be interrupted at each of its grants, for nothing, until the other's turn has come."""
    sched.start("dan", domain="other")
    sched.begin("ada", ephemeral=800)
    sched.open("dan")
    assert sched.want("dan", context=300) == []
    assert sched.release("ada", ephemeral=800) == []
    assert sched.want("ada") == [Grant(session="ada", lane=1)]
    actions = [action for _ in range(3) for action in sched.tick_at_deadline()]
    assert Revoke(session="ada") in actions  # its lane is taken once dan has waited for long enough


def test_a_first_cell_takes_no_lane_that_others_would_get_again(sched: Desk) -> None:
    """A lane that was cleared before its turn was made anew for the same session, again and again without an end."""
    for name in ("ada", "bob", "cleo", "dan"):
        sched.ready(name, domain=f"{name}'s own")
    sched.want("ada", 100)
    sched.want("bob", 100)
    sched.want("cleo")  # nothing is known of it: it gets the rest
    for name, until in (("ada", 0.0), ("bob", 0.01)):
        sched.at(until).release(name)
        sched.want(name)
    sched.release("cleo", "yield", ephemeral=200, live=200)
    sched.want("cleo")
    assert sched.tick_at_deadline() == [Revoke(session="ada")]
    sched.want("dan", context=150)  # as much as ada and bob have, of whom ada has not yielded yet
    assert sched.state("bob") == sched.state("dan") == "queued"
    assert sched.session("bob").lane is sched.scheduler.lanes.by_id[2]  # as before
