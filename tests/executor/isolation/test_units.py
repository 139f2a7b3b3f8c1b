"""The systemd drop-ins for an executor that runs sessions under users' own accounts."""

from __future__ import annotations

import itertools
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
    # no directory can hand on its group, since the unit has RestrictSUIDSGID=
    assert f"Group={user.removeprefix('User=')}" in executor


def test_the_command_has_these_options() -> None:
    """Each option in the drop-in is one of the executor's."""
    command = next(line for line in settings(NAMES[0]) if line.startswith("ExecStart=/"))
    shown = subprocess.run(
        [sys.executable, "-m", "sharedkernel", "executor", "--help"], capture_output=True, text=True, check=True
    ).stdout
    options = [word for word in command.split() if word.startswith("--")]
    assert options
    assert [option for option in options if option not in shown] == []


#: most exposure (in tenths, of 100) that systemd may see in each unit; a session runs its user's code in the executor's
_MOST_EXPOSURE = {NAMES[0]: 78, NAMES[1]: 20}

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not there to say whether it understands"
)


def _install(directory: Path, name: str, *, drop_in: bool) -> Path:
    """Install a unit, whose program is there, and its drop-in in *directory*; return the unit."""
    for path in (Path(name), Path(f"{name}.d", "isolate.conf"))[: 1 + drop_in]:
        (directory / path).parent.mkdir(exist_ok=True)
        text = (UNITS / path).read_text().replace("/opt/sharedkernel/bin/sharedkernel", sys.executable)
        (directory / path).write_text(text)
    return directory / name


def _analyze(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True, text=True, check=False, env=os.environ | {"SYSTEMD_UNIT_PATH": f"{directory}:"},
    )  # fmt: skip


@needs_systemd
@pytest.mark.parametrize(
    ("name", "drop_in"), [*itertools.product(NAMES, [False, True]), ("sharedkernel-host.service", False)]
)
def test_systemd_understands_them_and_sees_no_more_exposure_than_notebooks_need(
    tmp_path: Path, name: str, drop_in: bool
) -> None:
    """No unknown setting, no value that it ignores; a setting of the sandbox that is lost shows here."""
    unit = _install(tmp_path, name, drop_in=drop_in)
    checked = _analyze(tmp_path, "verify", str(unit))
    assert checked.returncode == 0, checked.stderr
    assert name not in checked.stderr, checked.stderr
    if name in NAMES:
        options = ("--offline=yes", "--no-pager", f"--threshold={_MOST_EXPOSURE[name]}")
        checked = _analyze(tmp_path, "security", *options, str(unit))
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_system_ends_no_service_before_a_session(name: str) -> None:
    """When memory runs out; and the executor's unit, in which users' tensors are, has no limit on memory."""
    lines = (UNITS / name).read_text().splitlines()
    (score,) = [int(line.partition("=")[2]) for line in lines if line.startswith("OOMScoreAdjust=")]
    assert score < 0
    assert any(line.startswith("MemoryMax=") for line in lines) == (name == NAMES[1])
