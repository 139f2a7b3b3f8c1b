"""The policy fifo: the oldest cell that came to the device runs to its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.scheduling.model.actions import Grant
from tests.scheduling.desk import Desk


@pytest.fixture
def fifo(make_sched: Callable[..., Desk]) -> Desk:
    """Yield a scheduler of a device with 1000 bytes, policy fifo without backfill."""
    return make_sched(policy="fifo")


def test_cells_run_one_after_the_other_in_their_order(fifo: Desk) -> None:
    """Whoever opened a cell first is served first, to the end of the cell; nothing is revoked."""
    fifo.begin("zoe", ephemeral=10)
    fifo.start("ada", "bob")
    fifo.open("bob", "ada")
    fifo.want("ada", 10)
    fifo.want("bob", 10)
    assert fifo.at(1000.0).tick() == []
    assert [fifo.view(name).queue_position for name in ("bob", "ada")] == [1, 2]
    assert fifo.release("zoe", "cell") == []
    assert Grant(session="bob", lane=3) in fifo.close("zoe")


def test_a_cell_keeps_its_place_while_its_python_runs(fifo: Desk) -> None:
    """Between its grants the device stays reserved for the cell that has begun."""
    fifo.begin("ada", "bob", ephemeral=10)
    assert fifo.release("ada", "boundary") == []
    assert fifo.want("ada") == [Grant(session="ada", lane=1)]
    assert fifo.release("ada", "cell") == []
    assert Grant(session="bob", lane=2) in fifo.close("ada")


def test_an_older_cell_that_comes_late_does_not_stop_one_that_has_begun(fifo: Desk) -> None:
    """What counts first is who has begun."""
    fifo.ready("ada", "bob")
    fifo.want("bob", 10)
    fifo.want("ada", 10)
    assert fifo.release("bob") == []
    assert fifo.want("bob") == [Grant(session="bob", lane=1)]


def test_an_ended_session_gives_its_place_free(fifo: Desk) -> None:
    """A session that dies between its grants holds nobody up."""
    fifo.begin("ada", "bob", ephemeral=10)
    fifo.release("ada")
    assert Grant(session="bob", lane=2) in fifo.end("ada")


@pytest.mark.parametrize(("backfill", "state"), [(False, "waiting"), (True, "queued")])
def test_backfill_lets_small_cells_pass(make_sched: Callable[..., Desk], backfill: bool, state: str) -> None:
    """While the oldest waits for memory later cells wait too, unless backfill is on and they fit."""
    sched = make_sched(policy="fifo", backfill=backfill)
    sched.begin("ada", ephemeral=600, domain="x")
    sched.begin("bob", ephemeral=500)
    sched.begin("cleo", ephemeral=100)
    assert sched.state("bob") == "waiting"
    assert sched.state("cleo") == state


def test_the_oldest_is_not_stopped_by_memory_that_a_younger_one_was_given_first(fifo: Desk) -> None:
    """The younger one runs, so that the older one's memory comes free."""
    fifo.begin("zoe", ephemeral=10)
    fifo.start("ada", domain="x")
    fifo.start("bob", domain="y")
    fifo.open("ada", "bob")
    fifo.want("bob", 900)
    fifo.want("ada", 900)
    assert Grant(session="bob", lane=2) in fifo.finish("zoe")
    assert Grant(session="ada", lane=3) in fifo.finish("bob")
