"""Quotas and shelves beside what is offloaded: what counts, what may come back, and what makes way for it."""

from __future__ import annotations

from sharedkernel.scheduling.model.actions import Offload, Restore
from sharedkernel.status.refusal_text import explain_shortage
from tests.scheduling.desk import Desk, refused

MIB = 1 << 20
CAPACITY = 1000 * MIB


def test_what_is_away_counts_to_no_quota_until_it_comes_back(sched: Desk) -> None:
    """A user's own idle sessions make way then, at once."""
    sched.user("ada", quota=600 * MIB, offload_after=None)
    sched.away("ada1", 400 * MIB)
    sched.begin("ada2", ephemeral=100 * MIB)
    sched.release("ada2", "cell")
    sched.close("ada2", persistent=500 * MIB)
    assert sched.reopen("ada1") == [Offload(session="ada2")]
    assert sched.view("ada1").waiting_for == "quota"
    assert sched.offload("ada2") == [Restore(session="ada1")]
    assert sched.view("ada1").waiting_for == "restore"


def test_what_was_given_beyond_the_quota_comes_back(sched: Desk) -> None:
    """A device cannot refuse each byte: a cell that asks for nothing new is not refused for it, but what is new is."""
    sched.user("ada", quota=600 * MIB)
    sched.away("ada1", 630 * MIB)
    sched.ready("ada2")
    sched.measure("ada2", persistent=40 * MIB)
    refusal = refused(sched.reopen("ada1"))
    assert refusal.shortage.reason == "quota"
    sched.close("ada1")
    sched.measure("ada2", persistent=0)
    assert sched.reopen("ada1") == [Restore(session="ada1")]


def test_a_restore_over_the_quota_is_refused_where_nothing_can_make_way(sched: Desk) -> None:
    """With figures; its memory stays where it is."""
    sched.user("ada", quota=600 * MIB)
    sched.away("ada1", 400 * MIB)
    sched.ready("ada2")
    sched.measure("ada2", persistent=500 * MIB)
    refusal = refused(sched.reopen("ada1"))
    assert (refusal.session, refusal.shortage.reason) == ("ada1", "quota")
    assert "takes 400 MiB: your quota is 600 MiB, your sessions use 500 MiB" in explain_shortage(refusal.shortage)
    assert sched.view("ada1").queue_position is None
    sched.close("ada1")
    assert sched.state("ada1") == "offloaded"
    sched.close("ada2")
    assert sched.reopen("ada1") == [Offload(session="ada2")]
    refused(sched.decline("ada2"))


def test_an_executor_that_came_since_refuses_a_cell_that_gave_way_once_at_most(sched: Desk) -> None:
    """It does not know that the cell was cut short until the first refusal is answered."""
    sched.user("ada", quota=600 * MIB)
    sched.away("ada1", 400 * MIB)
    sched.ready("ada2")
    sched.measure("ada2", persistent=500 * MIB)
    assert refused(sched.reopen("ada1")).shortage.reason == "quota"
    assert sched.not_restored("ada1") == [Restore(session="ada1")]


def test_what_is_larger_than_the_device_is_not_brought_back(sched: Desk) -> None:
    """As after a restart with less capacity: one sentence, and nothing is lost."""
    sched.away("ada", 1001 * MIB)
    refusal = refused(sched.reopen("ada"))
    assert refusal.shortage.reason == "no_lane_fits"
    assert "takes 1001 MiB, but the device has 1000 MiB for it" in explain_shortage(refusal.shortage)
    assert refused(sched.not_restored("ada")).shortage.reason == "no_lane_fits"  # also of a cell that was cut short


def test_a_shelf_is_charged_to_device_and_quota_and_outlives_sessions(sched: Desk) -> None:
    """It counts like what notebooks keep, and stays when they are gone."""
    sched.user("ada", quota=500 * MIB)
    sched.shelve("ada", 300 * MIB)
    sched.begin("ada")
    refusal = refused(sched.grow("ada", 201 * MIB)[-1:])
    expected = "your quota is 500 MiB, your sessions use 0 B, your shelf 300 MiB"
    assert expected in explain_shortage(refusal.shortage)
    sched.begin("bob", ephemeral=700 * MIB)
    assert sched.state("bob") == "running"
    sched.end("ada")
    snapshot = sched.scheduler.snapshot(sched.now)
    (view, *_) = snapshot.users
    assert (snapshot.shelf, view.shelf) == (300 * MIB, 300 * MIB)
    assert sched.scheduler.ledger.used == 1000 * MIB
    sched.shelve("ada", 0)
    assert sched.scheduler.ledger.used == 700 * MIB
