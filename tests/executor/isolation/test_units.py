"""The systemd drop-ins for an executor that runs sessions under users' own accounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "packaging" / "systemd"
NAMES = ("sharedkernel-executor.service", "sharedkernel-gateway.service")


def settings(name: str) -> list[str]:
    """Return a drop-in's settings."""
    lines = (UNITS / f"{name}.d" / "isolate.conf").read_text().splitlines()
    return [line for line in lines if "=" in line and not line.startswith("#")]


def test_users_pass_through_the_directories_and_the_gateway_stays_without_root() -> None:
    """Control groups are the executor's to make; the gateway's unit does not take the runtime directory from it."""
    executor, gateway = map(settings, NAMES)
    assert {"User=root", "RuntimeDirectoryMode=0711", "StateDirectoryMode=0711", "Delegate=yes"} <= set(executor)
    assert "ProtectControlGroups=no" in executor
    assert gateway == ["RuntimeDirectory=", "ReadWritePaths=/run/sharedkernel"]
    (user,) = [line for line in (UNITS / NAMES[1]).read_text().splitlines() if line.startswith("User=")]
    assert any(f"--gateway-user {user.removeprefix('User=')}" in line for line in executor)


def test_the_command_has_these_options() -> None:
    """Each option in the drop-in is one of the executor's."""
    command = next(line for line in settings(NAMES[0]) if line.startswith("ExecStart=/"))
    shown = subprocess.run(
        [sys.executable, "-m", "sharedkernel", "executor", "--help"], capture_output=True, text=True, check=True
    ).stdout
    options = [word for word in command.split() if word.startswith("--")]
    assert options
    assert [option for option in options if option not in shown] == []


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not there to say whether it understands"
)
@pytest.mark.parametrize("name", NAMES)
def test_systemd_understands_them(tmp_path: Path, name: str) -> None:
    """No unknown setting, no value that it ignores."""
    for path in (Path(name), Path(f"{name}.d", "isolate.conf")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        text = (UNITS / path).read_text().replace("/opt/sharedkernel/bin/sharedkernel", sys.executable)
        (tmp_path / path).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True, text=True, check=False, env=os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )  # fmt: skip
    assert name not in checked.stderr, checked.stderr
