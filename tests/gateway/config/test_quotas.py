"""What each user may use, and where each value came from."""

from __future__ import annotations

from typing import Any

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.config.quotas import BUILT_IN, MOST_SESSIONS, QuotaError, Quotas

GIB = 1024**3


def test_the_most_specific_value_wins_key_by_key() -> None:
    """User before group before default before what is built in, each key by itself."""
    quotas = Quotas(
        {
            "default": {"memory": "1GiB", "share": 1, "sessions": 2},
            "groups": {"class": {"memory": "2GiB", "share": 3}, "staff": {"share": 5, "priority": 1}},
            "users": {"ada": {"memory": "4GiB"}},
        },
        {"class": ["ada", "grace"], "staff": ["ada"]},
    )
    limits = quotas.limits("ada", 8 * GIB)
    assert (limits.quota_bytes, limits.share, quotas.max_sessions("ada"), limits.priority) == (4 * GIB, 3.0, 2, 1)
    assert limits.group == "class"
    sources = {key: entry["source"] for key, entry in quotas.explain("ada").items()}
    assert sources == {
        "memory": "config: user ada",
        "share": "config: group class",
        "sessions": "config: default",
        "priority": "config: group staff",
        "offload_after": BUILT_IN,
        "cull_after": BUILT_IN,
        "linger": BUILT_IN,
    }
    assert quotas.limits("nobody", 8 * GIB).group is None


def test_what_was_put_lies_over_the_configuration_at_its_level() -> None:
    """A PUT for a group still yields to the configuration of a user."""
    quotas = Quotas({"groups": {"class": {"share": 2}}, "users": {"ada": {"share": 3}}}, {"class": ["ada", "grace"]})
    quotas.put({"groups": {"class": {"share": 7}}})
    quotas.put({"groups": {"class": {"sessions": 1}}})
    assert quotas.limits("ada", None).share == 3
    assert quotas.explain("grace")["share"] == {"value": 7.0, "source": "put: group class"}
    assert quotas.max_sessions("grace") == 1
    quotas.put({"users": {"ada": {"sessions": None}}})
    assert quotas.max_sessions("ada") is None


def test_one_value_that_was_put_can_be_withdrawn() -> None:
    """The configuration's value holds again; the others that were put for the user or group stay."""
    quotas = Quotas({"users": {"ada": {"share": 3}}}, {"class": ["ada"]})
    quotas.put({"users": {"ada": {"share": 7, "sessions": 2}}, "groups": {"class": {"priority": 1, "linger": 5}}})
    quotas.withdraw(user="ada", key="share")
    quotas.withdraw(user="ada", key="memory")
    quotas.withdraw(user="grace", key="share")
    quotas.withdraw(group="class", key="priority")
    assert quotas.overrides() == {"default": {}, "users": {"ada": {"sessions": 2}}, "groups": {"class": {"linger": 5}}}
    assert quotas.limits("ada", None).share == 3
    quotas.withdraw(user="ada", key="sessions")
    assert not quotas.has_put("ada")


@pytest.mark.parametrize(
    ("quotas", "path", "sentence"),
    [
        ({"default": {"memory": "8-Gb"}}, ("default", "memory"), "'8-Gb' is not an amount of memory"),
        ({"users": {"ada": {"memory": "120%"}}}, ("users", "ada", "memory"), "more than the whole device"),
        ({"groups": {"x": {"share": 0}}}, ("groups", "x", "share"), "write a number above 0"),
        ({"default": {"sessions": -1}}, ("default", "sessions"), "write a whole number from 0"),
        ({"default": {"share": True}}, ("default", "share"), "write a number above 0"),
        ({"default": {"sessions": 1.5}}, ("default", "sessions"), "write a whole number from 0"),
        ({"default": {"priority": "high"}}, ("default", "priority"), "write a whole number"),
        ({"default": {"cull_after": "soon"}}, ("default", "cull_after"), "is not a duration"),
        ({"default": {"colour": 1}}, ("default", "colour"), "the keys are memory, share"),
        ({"defaults": {}}, ("defaults",), "it has default, groups and users"),
        ({"users": ["ada"]}, ("users",), "write a dictionary by name"),
        ({"users": {"ada": "8GiB"}}, ("users", "ada"), "write a dictionary such as"),
    ],
)
def test_a_bad_quota_is_one_sentence_that_says_where(quotas: Any, path: tuple[str, ...], sentence: str) -> None:
    """What was wrong, where, and what to write instead."""
    with pytest.raises(QuotaError) as refused:
        Quotas(quotas)
    assert refused.value.path == path
    assert sentence in str(refused.value)
    kept = Quotas()
    with pytest.raises(QuotaError):  # all of a PUT counts, or none
        kept.put({"users": {"grace": {"share": 2}}} | quotas)
    assert kept.limits("grace", None).share == 1.0


def test_values_have_units_and_defaults() -> None:
    """A percentage is of the device, `cull_after` takes text, seconds, 0 and None, and no entry is no unlimited one."""
    quotas = Quotas(
        {"default": {"memory": "25%", "cull_after": "10m"}, "users": {"ada": {"cull_after": 0, "sessions": None}}}
    )
    assert [quotas.limits("ada", size).quota_bytes for size in (8 * GIB, None)] == [2 * GIB, None]
    assert [quotas.cull_after(user) for user in ("linus", "ada")] == [600.0, None]
    assert [quotas.max_sessions(user) for user in ("linus", "ada")] == [MOST_SESSIONS, None]
    assert quotas.explain("linus")["sessions"] == {"value": MOST_SESSIONS, "source": BUILT_IN}
    with pytest.raises(QuotaError, match="write a dictionary"):
        Quotas("8GiB")
    for groups in (["ada"], {"class": "ada"}, {"class": [1]}):
        with pytest.raises(ConfigError, match="write a"):
            Quotas({}, groups)  # type: ignore[arg-type]
