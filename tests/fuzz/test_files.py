"""Files that people write, or that a crash tore: read, or refused in a sentence."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from sharedkernel.errors import ConfigError
from sharedkernel.executor.dispatch.users import user_configured
from sharedkernel.gateway.app import SharedKernelGateway
from sharedkernel.gateway.config.settings import PARSERS, build_quotas, parse_setting, read_settings
from sharedkernel.gateway.config.validation import (
    ineffective_settings,
    invalid_values,
    unusable_settings,
    without_faults,
)
from sharedkernel.system.state_file import StateFile
from tests.fuzz.fuzzing import fuzz, json_values, mangled, texts

_amounts = json_values | st.sampled_from(["25%", "8GiB", "-1", "1e400%", "10m", "∞", "8-Gb", 0, 1.5, float("nan")])
_keys = st.sampled_from(["memory", "share", "sessions", "priority", "offload_after", "cull_after", "linger"])
_entries = st.dictionaries(_keys | texts, _amounts, max_size=4)
_by_name = st.dictionaries(texts, _entries, max_size=3)
_quotas = st.fixed_dictionaries({}, optional={"default": _entries, "groups": _by_name, "users": _by_name}) | json_values
_good = st.just(b"c = get_config()\nc.SharedKernelGateway.quotas = {'default': {'memory': '25%'}}\n")


def outcome(build: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """Return what *build* gives, or None and its refusal."""
    try:
        return build(*arguments), ""
    except ConfigError as error:
        return None, str(error)


@fuzz(examples=80, quotas=_quotas, groups=st.dictionaries(texts, st.lists(texts, max_size=3)) | json_values)
def test_any_quotas_are_used_or_refused(quotas: Any, groups: Any) -> None:
    """A refusal is one sentence; what is not refused can be asked about for anybody, on any device."""
    found, refusal = outcome(build_quotas, quotas, groups, [])
    assert len(refusal.splitlines()) <= 1
    if found is not None:
        for user in ("ada", *found.known_users()):
            user_configured(found.limits(user, 8 << 30))
            found.explain(user)


@fuzz(examples=30, value=json_values)
def test_any_devices_and_fronts_are_used_or_refused(value: Any) -> None:
    """One sentence each."""
    for name in PARSERS:
        _, refusal = outcome(parse_setting, name, value, [])
        assert len(refusal.splitlines()) <= 1


@fuzz(examples=60, text=mangled(_good) | st.binary(max_size=60), suffix=st.sampled_from([".py", ".json"]))
def test_any_configuration_file_is_read_or_refused(text: bytes, suffix: str) -> None:
    """Whatever the text is, the error names the file; what it sets can be checked."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"config{suffix}"
        path.write_bytes(text)
        settings, refusal = outcome(read_settings, [], str(path))
        if settings is None:
            assert str(path) in refusal
        else:
            app = SharedKernelGateway()
            unusable = list(unusable_settings(app, settings))
            usable = without_faults(unusable, settings)
            for sentence in (*invalid_values(app, usable), *ineffective_settings(app, usable)):
                assert "\n" not in sentence


class Entry(msgspec.Struct, frozen=True):
    """What the file of these tests holds."""

    number: int
    text: str = ""


class Entries(msgspec.Struct, tag_field="version", tag=1, frozen=True):
    """All of it."""

    entries: list[Entry]


_states = st.builds(Entries, st.lists(st.builds(Entry, st.integers(0, 100), texts), max_size=6))


@fuzz(examples=25, state=_states, data=st.data())
def test_a_torn_state_file_is_whole_or_set_aside(state: Entries, data: st.DataObject) -> None:
    """Wherever it is torn, mangled or filled with noise, its owner starts, and what is kept then is there."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "state.json"
        StateFile(path, Entries).write(state)
        whole = path.read_bytes()
        torn = whole[: data.draw(st.integers(0, len(whole)), label="length")]
        for content in (torn, data.draw(mangled(st.just(whole)) | st.binary(max_size=60), label="mangled")):
            path.write_bytes(content)
            file = StateFile(path, Entries)
            found = file.read()
            assert found == state or content != whole
            file.write(state)
            assert StateFile(path, Entries).read() == state
