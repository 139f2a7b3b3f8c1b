"""The systemd units: what sessions and secrets depend on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    """Its children live on, with their sockets and files; one that dies of memory takes nobody along."""
    executor = settings(unit)
    assert executor["KillMode"] == ["process"]
    assert executor["OOMPolicy"] == ["continue"]
    assert executor["RuntimeDirectoryPreserve"] == ["yes"]
    assert "PrivateTmp" not in executor  # it would be emptied under them


@pytest.mark.parametrize("unit", [EXECUTOR, HOST], ids=["executor", "host"])
def test_each_user_has_a_home(unit: Path) -> None:
    """The account has none, and `%pip install` would fail for everybody; they are where the unit may write."""
    executor = settings(unit)
    assert "sharedkernel" in executor["StateDirectory"][0].split()
    assert "HOME=/var/lib/sharedkernel" in executor["Environment"]
    assert "--homes /var/lib/sharedkernel/homes" in executor["ExecStart"][0]


@pytest.mark.parametrize("unit", [EXECUTOR, GATEWAY, HOST], ids=["executor", "gateway", "host"])
def test_each_service_has_a_home_that_it_can_look_into(unit: Path) -> None:
    """Jupyter looks there at its start, and a unit with `ProtectHome` cannot look for one that is not there."""
    found = settings(unit)
    (home,) = [value.removeprefix("HOME=") for value in found["Environment"] if value.startswith("HOME=")]
    assert home.removeprefix("/var/lib/") in found["StateDirectory"][0].split()


@pytest.mark.parametrize("unit", [EXECUTOR, GATEWAY, HOST], ids=["executor", "gateway", "host"])
def test_a_service_is_tried_again_for_as_long_as_it_takes(unit: Path) -> None:
    """Else systemd gives up or not, by how long the machine takes for five tries."""
    assert settings(unit)["Restart"] == ["always"]
    assert settings(unit)["StartLimitIntervalSec"] == ["0"]


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


def test_the_end_of_the_gateway_removes_nothing_of_sessions() -> None:
    """They have its account, and shared memory belongs to that."""
    assert "RemoveIPC" not in settings(GATEWAY)


def test_a_gateway_that_takes_too_much_memory_starts_again() -> None:
    """It is ended before the machine has none left, and always comes back."""
    gateway = settings(GATEWAY)
    assert gateway["MemoryMax"] == ["4G"]
    assert gateway["Restart"] == ["always"]


def test_no_unit_has_more_rights_or_shows_more_than_it_must() -> None:
    """No new privileges, private directories and files; the gateway may write nowhere else."""
    for unit in map(settings, (EXECUTOR, GATEWAY, HOST)):
        assert unit["NoNewPrivileges"] == ["yes"]
        assert unit["RuntimeDirectoryMode"] == ["0700"]
        assert unit["UMask"] == ["0077"]
    assert settings(GATEWAY)["ProtectSystem"] == ["strict"]
    assert settings(GATEWAY)["CapabilityBoundingSet"] == [""]
    assert settings(GATEWAY)["LogsDirectoryMode"] == ["0700"]


def test_a_gateway_can_write_beside_its_tokens() -> None:
    """Users make tokens on its page and by invitations, and a class is kept there."""
    for unit in (GATEWAY, HOST):
        (directory,) = [
            value.partition("=")[2]
            for value in settings(unit)["Environment"]
            if value.startswith("JUPYTER_CONFIG_DIR=")
        ]
        assert settings(unit)["ReadWritePaths"] == [f"-{directory}"]


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
        shown = subprocess.run(
            [sys.executable, "-m", "sharedkernel", name, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for option in options:
            assert not option.startswith("--") or option in shown, (name, option)
