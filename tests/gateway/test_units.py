"""The systemd units: what sessions and secrets depend on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import run_here

UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
EXECUTOR, GATEWAY, HOST = (UNITS / f"sharedkernel-{name}.service" for name in ("executor", "gateway", "host"))


def settings(unit: Path) -> dict[str, list[str]]:
    """Return each setting's values, in their order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", [EXECUTOR, HOST], ids=["executor", "host"])
def test_stopping_the_executor_leaves_its_sessions_and_what_they_need(unit: Path) -> None:
    """Its children live on, with their sockets and files; one that dies of memory takes nobody along.

    Each user has a home where the unit may write: the account has none, and `%pip install` would fail for everybody.
    """
    executor = settings(unit)
    assert executor["KillMode"] == ["process"]
    assert executor["OOMPolicy"] == ["continue"]
    assert executor["RuntimeDirectoryPreserve"] == ["yes"]
    assert "PrivateTmp" not in executor  # it would be emptied under them
    assert "--homes /var/lib/sharedkernel/homes" in executor["ExecStart"][0]


@pytest.mark.parametrize("unit", [EXECUTOR, GATEWAY, HOST], ids=["executor", "gateway", "host"])
def test_each_service_has_a_home_and_is_tried_again_for_as_long_as_it_takes(unit: Path) -> None:
    """Jupyter looks there at its start, and a unit with `ProtectHome` cannot look for one that is not there."""
    found = settings(unit)
    (home,) = [value.removeprefix("HOME=") for value in found["Environment"] if value.startswith("HOME=")]
    assert home.removeprefix("/var/lib/") in found["StateDirectory"][0].split()
    assert (found["Restart"], found["StartLimitIntervalSec"]) == (["always"], ["0"])


def test_what_outlives_a_reboot_is_where_each_unit_may_write() -> None:
    """Not in /run; the gateway's directory is its own, as the executor's may be root's."""
    for unit, own in (
        (EXECUTOR, "sharedkernel/state"),
        (GATEWAY, "sharedkernel-gateway"),
        (HOST, "sharedkernel/state"),
    ):
        assert f"--state-dir /var/lib/{own}" in settings(unit)["ExecStart"][0]
        assert own.partition("/")[0] in settings(unit)["StateDirectory"][0].split()
    assert "-- --state-dir /var/lib/sharedkernel-gateway" in settings(HOST)["ExecStart"][0]
    assert "sharedkernel-gateway" in settings(HOST)["StateDirectory"][0].split()


def test_no_unit_has_more_rights_or_shows_more_than_it_must() -> None:
    """No new privileges, private directories and files; the gateway may write nowhere else."""
    for unit in map(settings, (EXECUTOR, GATEWAY, HOST)):
        assert unit["NoNewPrivileges"] == ["yes"]
        assert unit["RuntimeDirectoryMode"] == ["0700"]
        assert unit["UMask"] == ["0077"]
    assert settings(GATEWAY)["ProtectSystem"] == ["strict"]
    assert settings(GATEWAY)["CapabilityBoundingSet"] == [""]
    assert settings(GATEWAY)["LogsDirectoryMode"] == ["0700"]
    assert settings(GATEWAY)["MemoryMax"] == ["4G"], "it is ended before the machine has none left"
    assert "RemoveIPC" not in settings(GATEWAY), "sessions have its account, to which shared memory belongs"
    for unit in map(settings, (GATEWAY, HOST)):  # users make tokens there, and a class is kept beside them
        (directory,) = [value[19:] for value in unit["Environment"] if value.startswith("JUPYTER_CONFIG_DIR=")]
        assert unit["ReadWritePaths"] == [f"-{directory}"]


def test_all_meet_in_one_directory_with_options_that_there_are() -> None:
    """The gateway finds the executor, and each option in a unit is one of its command."""
    assert "/run/sharedkernel" in settings(EXECUTOR)["ExecStart"][0]
    assert all(settings(unit)["RuntimeDirectory"] == ["sharedkernel"] for unit in (EXECUTOR, GATEWAY, HOST))
    commands = [line for unit in (EXECUTOR, GATEWAY, HOST) for key in ("ExecStartPre", "ExecStart")
                for line in settings(unit).get(key, [])]  # fmt: skip
    # In the command of the host what is in quotes is the executors', and what follows -- the gateway's.
    commands = [
        part
        for line in commands
        for part in re.sub(
            r'"--executor-options=(.*)" -- ', r"\nsharedkernel executor \1\nsharedkernel gateway ", line
        ).splitlines()
    ]
    for line in commands:
        name, *options = line.split()[1:]
        shown = run_here(name, "--help").stdout
        for option in options:
            assert not option.startswith("--") or option in shown, (name, option)
