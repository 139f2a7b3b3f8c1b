"""Checks of the configuration: ``sharedkernel gateway --check-config``, what a gateway starts with, and SIGHUP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sharedkernel.gateway.app import SharedKernelGateway
from tests.command import run_here
from tests.gateway.client import PATIENCE
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
READ = ("INFO", "the configuration was read again")
_SECTION = "c.SharedKernelGateway"


def check(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Check the configuration at *path*."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTERHUB_")}
    with mock.patch.dict(os.environ, variables | environment, clear=True):
        return run_here("gateway", "--check-config", "--config", str(path), "--runtime-dir", str(path.parent / "run"))


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


class Reloaded:
    """A gateway in this process that is given one configuration after the other."""

    def __init__(self, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.path = directory / "config.py"
        self._directory = directory
        self._caplog = caplog
        self._open = contextlib.ExitStack()

    def start(self, *lines: str, arguments: tuple[str, ...] = ()) -> SharedKernelGateway:
        """Start it with a configuration of these lines, and with these arguments."""
        self.path.write_text("\n".join(lines))
        self.gateway, self._loop = self._open.enter_context(
            in_process("--config", str(self.path), *arguments, directory=self._directory)
        )
        self.gateway.log.addHandler(self._caplog.handler)
        self._open.callback(self.gateway.log.removeHandler, self._caplog.handler)
        return self.gateway

    def reload(self, *lines: str) -> list[tuple[str, str]]:
        """Have it read a configuration of these lines; return what it logged about that, with the levels."""
        self.path.write_text("\n".join(lines))
        self._caplog.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        self._loop.run(asyncio.wait_for(self._until_read(), PATIENCE))
        return [
            (record.levelname, record.getMessage().replace(str(self.path), "FILE"))
            for record in self._caplog.records
            if record.name == self.gateway.log.name
        ]

    async def _until_read(self) -> None:
        while not any("the configuration was" in record.getMessage() for record in self._caplog.records):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def share(self, user: str) -> object:
        """Return a user's share as it holds now."""
        return self.gateway.kernel_manager.rules.quotas.explain(user)["share"]["value"]

    def end(self) -> None:
        """End it."""
        self._open.close()


@pytest.fixture
def reloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Reloaded]:
    """Yield a gateway that is not started yet."""
    found = Reloaded(tmp_path, caplog)
    yield found
    found.end()


def quotas(share: int) -> str:
    return f"{_SECTION}.quotas = {{'default': {{'share': {share}}}}}"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"{_SECTION}.identity = 'token'", "identity is 'token'; write one of 'single', 'tokens', 'jupyterhub'."),
        ("c.SessionKernels.backlog_bytes = 'many'", "backlog_bytes is 'many'; it has to be an int."),
        ("c.ServerApp.certfile = '/nowhere/gpu.crt'", "/nowhere/gpu.crt cannot be used as certificate and key"),
    ],
)
def test_what_the_next_start_would_stop_at_is_said_and_what_changes_at_once_holds(
    reloaded: Reloaded, line: str, sentence: str
) -> None:
    """The fault is the one that a check would name; it is gone when the setting is right again."""
    reloaded.start(quotas(2))
    said = reloaded.reload(quotas(3), line)
    assert reloaded.share("ada") == 3
    assert READ in said
    (text,) = [text for level, text in said if level == "ERROR"]
    assert text.startswith("the gateway would not start again with this: ")
    assert sentence in text
    assert reloaded.reload(quotas(4)) == [READ]
    assert reloaded.share("ada") == 4


def test_what_a_start_would_make_nothing_of_is_warned_of(reloaded: Reloaded) -> None:
    """Names that nothing knows, and quotas of a group that nobody can be in, each with its line."""
    reloaded.start(quotas(2))
    first, *warnings = reloaded.reload(
        f"{_SECTION}.quotass = {{}}",
        "c.SharedKernelGatewai.admins = set()",
        f"{_SECTION}.quotas = {{'groups': {{'stuff': {{'share': 3}}}}}}",
    )
    assert first == READ
    for number, ((level, text), word) in enumerate(
        zip(warnings, ("'quotass'", "SharedKernelGatewai", "hold for nobody"), strict=True), 1
    ):
        assert (level, text.startswith(f"FILE, line {number}: "), word in text) == ("WARNING", True, True)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"{_SECTION}.placement = 'best'", "FILE, line 2: placement is 'best'; write one of 'least-loaded'"),
        (f"{_SECTION}.groups = {{'x': 'ada'}}", "FILE, line 2: groups['x'] is 'ada'; write a list of users' names."),
        (f"{_SECTION}.admins.add(3)", "The 'admins' trait of a SharedKernelGateway instance contains"),
        ("raise SystemExit", "FILE, line 2: SystemExit."),
        ("import sys; sys.exit('not today')", "FILE, line 2: SystemExit: not today."),
    ],
)
def test_of_what_changes_at_once_all_holds_or_nothing(reloaded: Reloaded, line: str, sentence: str) -> None:
    """Half a change could let in whom the other half keeps out; a file that asks to exit ends nothing."""
    reloaded.start(quotas(2))
    ((level, text),) = reloaded.reload(quotas(3), line)
    assert level == "ERROR"
    assert text.startswith("the configuration was not read again: ")
    assert sentence in text
    assert reloaded.share("ada") == 2


def test_json_that_has_something_else_in_the_place_of_the_section_changes_nothing(reloaded: Reloaded) -> None:
    """It is refused in a sentence, as at a start."""
    reloaded.path = reloaded.path.with_suffix(".json")
    reloaded.start('{"SharedKernelGateway": {"quotas": {"default": {"share": 2}}}}')
    ((level, text),) = reloaded.reload('{"SharedKernelGateway": 3}')
    assert (level, "FILE: c.SharedKernelGateway is no section" in text) == ("ERROR", True)
    assert reloaded.share("ada") == 2


def test_a_setting_that_is_taken_out_has_its_default_again(reloaded: Reloaded) -> None:
    """As after a start, whatever the gateway was started with; what the command line says holds on."""
    gateway = reloaded.start(
        f"{_SECTION}.placement = 'horus'",
        f"{_SECTION}.admins.add('ada')",
        f"{_SECTION}.policy = 'las'",
        arguments=("--SharedKernelGateway.policy=srtf",),
    )
    assert (gateway.kernel_manager.executors.placement, gateway.admins) == ("horus", {"ada"})
    assert reloaded.reload() == [READ]
    assert (gateway.kernel_manager.executors.placement, gateway.admins) == ("least-loaded", set())
    assert gateway.kernel_manager.rules.policy == "srtf"
