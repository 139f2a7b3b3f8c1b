"""SIGHUP on a gateway that serves: what holds of a configuration with faults, and what is said of the rest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.gateway.app import SharedKernelGateway
from tests.gateway.client import PATIENCE
from tests.gateway.test_command import in_process

READ = ("INFO", "the configuration was read again")
_SECTION = "c.SharedKernelGateway"


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
