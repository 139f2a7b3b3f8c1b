"""What the gateway makes of the executors' status when a new session has to go somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traitlets import TraitError

from sharedkernel.gateway.config.options import GatewayOptions
from sharedkernel.gateway.fleet.placement import NotebookHistory, choose
from sharedkernel.scheduling.placement import PLACEMENTS, Demand
from sharedkernel.status.document import DeviceStatus, LaneStatus, SessionStatus, StatusDocument, UserStatus

GIB = 1 << 30


def session(notebook: str | None = "a.ipynb", *, user: str = "ada", **fields: Any) -> SessionStatus:
    return SessionStatus(id="a", user=user, state="idle", notebook=notebook, **fields)


def status(*sessions: SessionStatus, lanes: int = 0, shelf: int = 0) -> StatusDocument:
    """Return the status of a device of 8 GiB, one of which is reserved."""
    return StatusDocument(
        device=DeviceStatus(name="a", capacity_bytes=8 * GIB, reserve_bytes=GIB),
        lanes=[LaneStatus(id=1, size_bytes=lanes)] if lanes else [],
        users=[UserStatus(name="ada", shelf_bytes=shelf)],
        sessions=list(sessions),
    )


def place(
    rule: str,
    in_use: Mapping[str, int],
    documents: Mapping[str, StatusDocument] | None = None,
    demand: Demand | None = None,
) -> str:
    return choose(rule, demand or Demand(), documents or {name: status() for name in in_use}, in_use)


def test_sessions_in_use_come_first_then_free_memory() -> None:
    """What sessions keep, lanes and shelves take memory; what is offloaded does not."""
    assert place("least-loaded", {"a": 2, "b": 1}) == "b"
    for taken in (
        status(session(persistent_bytes=GIB)),
        status(session(framework_bytes=GIB)),
        status(lanes=GIB),
        status(shelf=GIB),
    ):
        assert place("least-loaded", {"a": 1, "b": 1}, {"a": taken, "b": status()}) == "b"
    away = status(session(offloaded_bytes=GIB))
    assert place("least-loaded", {"a": 1, "b": 1}, {"a": away, "b": status()}) == "a"


def test_a_notebook_goes_where_there_is_the_memory_it_had() -> None:
    """Even to a device with more sessions; a notebook of another user or path is another."""
    experience = NotebookHistory()
    experience.observe("a", status(session(persistent_bytes=4 * GIB, framework_bytes=GIB, ephemeral_bytes=GIB)))
    experience.observe("a", status(session(persistent_bytes=0)))
    documents = {"a": status(session(None, persistent_bytes=3 * GIB)), "b": status()}
    in_use = {"a": 1, "b": 3}
    for user, notebook, device in (
        ("ada", "a.ipynb", "b"),
        ("grace", "a.ipynb", "a"),
        ("ada", "b.ipynb", "a"),
        ("ada", None, "a"),
    ):
        assert place("least-loaded", in_use, documents, experience.demand(user, notebook, documents)) == device


def test_speed_is_what_the_notebook_measured() -> None:
    """A device three times as fast is taken with twice the sessions; where it never ran, it is tried."""
    experience = NotebookHistory()
    experience.observe("slow", status(session(iteration_seconds=0.3)))
    demand = experience.demand("ada", "a.ipynb", {"slow": 0, "fast": 0})
    assert dict(demand.seconds) == {"slow": 0.3, "fast": 0.3}
    experience.observe("fast", status(session(iteration_seconds=0.1)))
    demand = experience.demand("ada", "a.ipynb", {"slow": 0, "fast": 0, "new": 0})
    assert dict(demand.seconds) == {"slow": 0.3, "fast": 0.1, "new": 0.1}
    for rule in ("least-loaded", "allox"):
        assert place(rule, {"slow": 1, "fast": 2}, demand=demand) == "fast"
        assert place(rule, {"slow": 1, "fast": 6, "new": 6}, demand=demand) == "slow"
        assert place(rule, {"slow": 1, "fast": 2}) == "slow"


def test_horus_counts_what_a_notebook_keeps_a_device_busy() -> None:
    """Two that use a quarter of a device fit beside each other, two that use all of it do not."""
    experience = NotebookHistory()
    experience.observe("a", status(session(utilisation=0.25)))
    demand = experience.demand("ada", "a.ipynb", {})
    assert demand.utilisation == 0.25
    light, heavy = status(session(utilisation=0.25, persistent_bytes=1)), status(session(utilisation=1.0))
    assert place("horus", {"a": 1, "b": 1}, {"a": heavy, "b": light}, demand) == "b"
    assert place("horus", {"a": 1, "b": 0}, {"a": light, "b": status()}, demand) == "a"


def test_tiresias_takes_what_has_nothing_to_do_and_else_the_least_loaded() -> None:
    """A notebook is never turned away for want of a device of its own; other rules' names are refused."""
    assert place("tiresias", {"a": 1, "b": 0}) == place("tiresias", {"a": 3, "b": 2}) == "b"
    with pytest.raises(TraitError, match=r"any of \['least-loaded', .*'horus'\]"):
        GatewayOptions(placement="random")


def test_only_so_many_notebooks_are_remembered() -> None:
    """The one not seen for longest goes."""
    experience = NotebookHistory()
    for number in range(1001):
        experience.observe("a", status(session("first.ipynb", persistent_bytes=1)))
        experience.observe("a", status(session(f"{number}.ipynb", persistent_bytes=1)))
    assert experience.demand("ada", "first.ipynb", {}).memory == 1
    assert experience.demand("ada", "1000.ipynb", {}).memory == 1
    assert experience.demand("ada", "0.ipynb", {}).memory == 0


@given(
    rule=st.sampled_from(sorted(PLACEMENTS)),
    devices=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9 * GIB)), min_size=1, max_size=5),
    memory=st.integers(0, 16 * GIB),
)
def test_every_session_gets_a_device(rule: str, devices: list[tuple[int, int]], memory: int) -> None:
    """Whatever the rule, however full; and with the memory it needs, if any device has that and the rule any place."""
    documents = {str(n): status(session(persistent_bytes=taken)) for n, (_, taken) in enumerate(devices)}
    in_use = {str(number): active for number, (active, _) in enumerate(devices)}
    chosen = place(rule, in_use, documents, Demand(memory=memory))
    assert chosen in documents
    fitting = [taken for _, taken in devices if max(0, 7 * GIB - taken) >= memory]
    if rule != "tiresias" and fitting:
        assert devices[int(chosen)][1] in fitting
