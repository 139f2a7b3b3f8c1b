"""``sharedkernel gateway --check-config``: what is wrong with the configuration, and what a gateway starts with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.test_command import in_process

_GROUPS = """\
c.SharedKernelGateway.quotas = {'groups': {
    'staff': {'share': 2},
    'stuff': {'share': 3},
}}
c.SharedKernelGateway.groups = {'staff': []}
"""
_STUFF = (
    "line 3: quotas['groups']['stuff'] hold for nobody: groups has no 'stuff'; write "
    "c.SharedKernelGateway.groups = {'stuff': [USER, …]}, or take them out."
)


_HUB = {"JUPYTERHUB_SERVICE_NAME": "gpu", "JUPYTERHUB_API_URL": "http://hub.example.org/hub/api"}


def check(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Check the configuration at *path*."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTERHUB_")}
    return subprocess.run(
        [sys.executable, "-m", "sharedkernel", "gateway", "--check-config", "--config", str(path),
         "--runtime-dir", str(path.parent / "run")],
        capture_output=True, text=True, check=False, timeout=120, env=variables | environment,
    )  # fmt: skip


def test_the_configuration_is_checked_with_one_sentence_for_each_fault(tmp_path: Path) -> None:
    """All faults at once, each with its line; nothing is started."""
    path = tmp_path / "config.py"
    path.write_text(
        "c.SharedKernelGateway.quotass = {}\n"
        "c.SharedKernelGatewai.admins = set()\n"
        "c.ServerApp.ip = '0.0.0.0'\n"
        "c.SharedKernelGateway.quotas = {\n"
        "    'user': {}, 'default': {'memory': '8-Gb', 'sessions': 'many'},\n"
        "}\n"
        "c.SharedKernelGateway.placement = 'best'\n"
        "c.SessionKernels.backlog_bytes = 'many'\n"
        "c.SharedKernelGateway.groups = {'x': 'ada', 'y': 3}\n"
        "c.SharedKernelGateway.identity = 'token'\n"
        "c.SharedKernelGateway.max_websockets = 0\n"
    )
    checked = check(path)
    assert (checked.returncode, checked.stdout) == (1, "")
    faults = checked.stderr.splitlines()
    for line, sentence in (
        (1, "SharedKernelGateway has no setting 'quotass'"),
        (2, "there is nothing called SharedKernelGatewai"),
        (5, "quotas has an unknown key 'user'"),
        (5, "quotas['default']['memory']: '8-Gb' is not an amount of memory"),
        (5, "quotas['default']['sessions']: 'many' is not a number of sessions"),
        (7, "placement is 'best'"),
        (8, "backlog_bytes is 'many'; it has to be an int"),
        (9, "groups['x'] is 'ada'"),
        (9, "groups['y'] is 3"),
        (10, "identity is 'token'; write one of 'single', 'tokens', 'jupyterhub'."),
        (11, "max_websockets is 0; write a number from 1."),
    ):
        place = f"sharedkernel: {path}, line {line}: "
        assert any(fault.startswith(place) and sentence in fault for fault in faults), (line, checked.stderr)
    assert len(faults) == 12, checked.stderr  # each is said once, and by nobody else
    assert any("without encryption" in fault for fault in faults)


def test_what_is_no_section_is_a_fault(tmp_path: Path) -> None:
    """JSON may have anything in the place of a section."""
    path = tmp_path / "config.json"
    path.write_text('{"quotas": 3}')
    checked = check(path)
    assert checked.returncode == 1
    assert len(checked.stderr.splitlines()) == 1
    assert "is no section; write c.SECTION.NAME = VALUE." in checked.stderr


@pytest.mark.parametrize("identity", ["tokens", "jupyterhub"])
def test_quotas_of_a_group_that_nobody_can_be_in_are_warned_of(tmp_path: Path, identity: str) -> None:
    """They may be left over, so they keep no gateway from starting; a hub tells groups of its own."""
    path = tmp_path / "config.py"
    path.write_text(f"{_GROUPS}c.SharedKernelGateway.identity = {identity!r}\n")
    checked = check(path, **_HUB)
    assert (checked.returncode, checked.stdout) == (0, f"In order: {path}.\n")
    warned = [] if identity == "jupyterhub" else [f"sharedkernel: warning: {path}, {_STUFF}"]
    assert checked.stderr.splitlines() == warned
    if warned:  # they make no fault less of one
        path.write_text(f"{_GROUPS}c.SharedKernelGateway.policy = 'fare'\n")
        checked = check(path)
        assert (checked.returncode, checked.stdout, checked.stderr.splitlines()[1:]) == (1, "", warned)
        assert checked.stderr.startswith(f"sharedkernel: {path}, line 6: policy is 'fare'; write one of 'fair'")


def test_what_a_hubs_service_lacks_is_said(tmp_path: Path) -> None:
    """Its name is a fault, as at a start; the hub's address may be the usual one, and files may say both."""
    path = tmp_path / "config.py"
    path.write_text("c.SharedKernelGateway.identity = 'jupyterhub'\n")
    checked = check(path, JUPYTERHUB_API_URL=_HUB["JUPYTERHUB_API_URL"])
    assert (checked.returncode, checked.stdout) == (1, "")
    assert checked.stderr == (
        "sharedkernel: no scope says whom JupyterHub lets use this gateway; set JUPYTERHUB_SERVICE_NAME to the "
        "service's name, or c.HubAuth.access_scopes.\n"
    )
    checked = check(path, JUPYTERHUB_SERVICE_NAME="gpu")
    assert (checked.returncode, checked.stdout) == (0, f"In order: {path}.\n")
    assert checked.stderr.startswith(
        "sharedkernel: warning: JUPYTERHUB_API_URL is not set, so JupyterHub is asked at http://127.0.0.1:8081/hub/api;"
    )
    with path.open("a") as file:
        file.write("c.HubAuth.access_scopes = {'access:services!service=gpu'}\nc.HubAuth.api_url = 'http://hub/api'\n")
    checked = check(path)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_gateway_that_starts_warns_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In its log, where whoever did not check the configuration may see it."""
    path = tmp_path / "config.py"
    path.write_text(_GROUPS)
    with in_process("--config", str(path), directory=tmp_path):
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[W")]
    assert len(said) == 1
    assert said[0].endswith(f"] {path}, {_STUFF}")
