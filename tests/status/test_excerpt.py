"""The part of a large cluster's status document that one reader gets."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.stub_hosts import make_status
from sharedkernel.gateway.hosts.registry import Host, merge_hosts
from sharedkernel.status.document import StatusDocument, UserOnDevice
from sharedkernel.status.excerpt import MAX_DEVICES, excerpt
from tests.status.documents import session, user

HOSTS = [f"h{number}" for number in range(125)]


@pytest.fixture(scope="module")
def large() -> StatusDocument:
    """Return the document of 1,000 devices with 20 sessions each; ada has one on the last host."""
    hosts = [Host(name=name, address="http://h:1", heard=0.0) for name in HOSTS]
    status = merge_hosts(dict.fromkeys(HOSTS, make_status(20)), hosts, "least-loaded")
    own = session("own", "ada", device="h99/cuda:7", host="h99", notebook="mine.ipynb")
    return msgspec.structs.replace(
        status,
        sessions=[*status.sessions, own],
        users=[*status.users, user("ada", devices=[UserOnDevice(device="h99/cuda:7")])],
    )


def test_an_answer_is_bounded_and_says_what_it_lacks(large: StatusDocument) -> None:
    """However large the cluster is; nothing is counted twice or not at all."""
    part = excerpt(large, "ada")
    assert len(msgspec.json.encode(part)) < 1_000_000 < len(msgspec.json.encode(large))
    assert part.left_out
    for kind in ("devices", "lanes", "sessions", "users", "hosts"):
        assert len(getattr(part, kind)) + getattr(part.left_out, kind) == len(getattr(large, kind)), kind
    assert part.left_out.devices == 1000 - MAX_DEVICES
    assert "936 devices" in part.left_out.sentence()


def test_the_reader_s_own_come_first(large: StatusDocument) -> None:
    """With their device and its lanes; then those that run or wait."""
    part = excerpt(large, "ada")
    assert part.session("own")
    assert part.user("ada")
    assert "h99/cuda:7" in {device.name for device in part.devices or ()}
    listed = {device.name for device in part.devices or ()}
    busy = [each for each in large.sessions if each.device in listed and each.state != "idle"]
    assert {each.id for each in busy} <= {each.id for each in part.sessions}
    assert {each.device for each in part.sessions} <= listed


@pytest.mark.parametrize("about", ["h77", "h77/cuda:3", "mine.ipynb", "ada"])
def test_what_is_asked_about_comes_next(large: StatusDocument, about: str) -> None:
    """A host, a device, a session, a notebook or a user."""
    part = excerpt(large, "grace", about)
    if about.startswith("h77"):
        found = [each for each in part.sessions if about in (each.host, each.device)]
        assert len(found) == len([each for each in large.sessions if about in (each.host, each.device)])
    else:
        assert part.session("own")


def test_a_small_cluster_is_shown_whole() -> None:
    """Without anything that says otherwise."""
    hosts = [Host(name=name, address="http://h:1", heard=0.0) for name in HOSTS[:2]]
    status = merge_hosts(dict.fromkeys(HOSTS[:2], make_status(2)), hosts, "least-loaded")
    assert excerpt(status, "ada") is status
