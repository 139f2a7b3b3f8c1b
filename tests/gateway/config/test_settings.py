"""The configuration file: what is read, and how errors name their line."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.app import SharedKernelGateway
from sharedkernel.gateway.config.settings import build_quotas, read_settings, value_at_start


def written(directory: Path, text: str) -> Path:
    path = directory / "jupyter_sharedkernel_config.py"
    path.write_text(text)
    return path


def test_files_are_found_by_name_and_the_first_directory_wins(tmp_path: Path) -> None:
    """As with every Jupyter application: a user's file goes before the system's."""
    for name, share in (("user", 2), ("system", 3)):
        (tmp_path / name).mkdir()
        written(
            tmp_path / name, f"c.SharedKernelGateway.quotas = {{'default': {{'share': {share}}}}}\nc.ServerApp.port = 1"
        )
    settings = read_settings([str(tmp_path / "user"), str(tmp_path / "system"), str(tmp_path / "none")])
    assert settings.config.SharedKernelGateway.quotas == {"default": {"share": 2}}
    assert len(settings.files) == 2


def test_settings_may_be_changed_in_place(tmp_path: Path) -> None:
    """`c.….quotas.update(…)` and `c.….admins.add(…)` work, as elsewhere in Jupyter."""
    path = written(
        tmp_path,
        "c.SharedKernelGateway.quotas.update({'default': {'share': 2}})\nc.SharedKernelGateway.admins.add('ada')",
    )
    value = partial(value_at_start, SharedKernelGateway(), read_settings([], str(path)))
    assert (value("quotas"), value("admins")) == ({"default": {"share": 2}}, {"ada"})


def test_the_values_of_a_start_are_the_command_line_s_then_the_files_then_defaults(tmp_path: Path) -> None:
    """Whatever the gateway that asks for them has itself, and in whose section they are written."""
    path = written(
        tmp_path, "c.ServerApp.ip = '*'\nc.JupyterApp.log_level = 'DEBUG'\nc.SharedKernelGateway.policy = 'las'"
    )
    app = SharedKernelGateway()
    app.parse_command_line(["--SharedKernelGateway.policy=srtf", "--ServerApp.port=7"])
    app.placement = "horus"
    value = partial(value_at_start, app, read_settings([], str(path)).under(app.cli_config))
    assert [value(name) for name in ("ip", "log_level", "policy", "port", "placement")] == [
        "", "DEBUG", "srtf", 7, "least-loaded"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("a = 1\nc.X = = 2\n", 2, "invalid syntax"),
        ("a = 1\n\nb = a / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("import nothing_of_that_name\n", 1, "No module named"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int, sentence: str) -> None:
    """The sentence names file and line."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        read_settings([], str(path))
    assert str(refused.value).startswith(f"{path}, line {line}: ")
    assert sentence in str(refused.value)


def test_a_missing_file_is_refused_only_when_it_was_named(tmp_path: Path) -> None:
    """`--config` has to be there; the usual places may be empty."""
    assert read_settings([str(tmp_path)]).files == ()
    with pytest.raises(ConfigError, match="there is no configuration file"):
        read_settings([], str(tmp_path / "missing.py"))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"c.SharedKernelGateway.quotas = {\n 'default': {'memory': '1GiB'},\n 'users': {\n"
         b"  'ada': {\n   'share': 2,\n   'memory': '8-Gb',\n  },\n },\n}\n", 6),
        (b"\nc.SharedKernelGateway.quotas = dict(default=dict(share=-1))\n", 2),
        (b"# -*- coding: latin-1 -*- \xe9\nc.SharedKernelGateway.quotas = {'default': {'memory': '8-Gb'}}\n", 2),
        (b"# \x80\nc.SharedKernelGateway.quotas = {'default': {'memory': '8-Gb'}}\n", 2),
    ],
)  # fmt: skip
def test_a_bad_quota_is_refused_with_the_line_of_its_entry(tmp_path: Path, content: bytes, line: int) -> None:
    """Not only the statement: the very line of the entry, where it is written out; in a file of any encoding."""
    path = tmp_path / "config.py"
    path.write_bytes(content)
    settings = read_settings([], str(path))
    with pytest.raises(ConfigError, match=re.escape(f"{path}, line {line}: ")):
        build_quotas(settings.config.SharedKernelGateway.quotas, {}, settings.files)
