"""Python environments that the admin names: each session has the one that it was asked for."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError, Refused
from sharedkernel.executor.supervision.environments import listener_of, open_environments
from sharedkernel.protocol import PROTOCOL_VERSION
from tests.executor.conftest import StartExecutor
from tests.executor.environments import MARKER, make_environment
from tests.executor.harness import Executor, ExecutorProcess
from tests.executor.sessions.test_packages import make_wheel


@pytest.fixture
def process(start_executor: StartExecutor, scratch: Path) -> Iterator[ExecutorProcess]:
    """Yield an executor with a second environment, whose warm parent ends with it."""
    python = make_environment(scratch / "second")
    process = start_executor("--environment", f"second-1.0={python}")
    yield process
    os.kill(listener_of(next(process.runtime_directory.glob("warm-*.sock"))), signal.SIGKILL)


@pytest.mark.heavy
async def test_sessions_run_where_they_were_asked_to(process: ExecutorProcess, scratch: Path, tmp_path: Path) -> None:
    """Side by side with those of the executor's own environment, also when another executor has taken over.

    `%pip install` is for the user's sessions of the same environment.
    """
    wheel = make_wheel(tmp_path)
    own_folder = f"import os; os.environ['XDG_DATA_HOME'] = {str(tmp_path / 'data')!r}"

    async with Executor(process) as executor:
        assert executor.client.environments == ["second-1.0"]
        first, second = await asyncio.gather(executor.notebook(), executor.notebook(environment="second-1.0"))
        assert (await first.run(f"import {MARKER}")).error == "ModuleNotFoundError"
        where = f"import {MARKER}, sys; sys.prefix, {MARKER}.where.startswith(sys.prefix)"
        assert (await second.run(where)).text == str((str(scratch / "second"), True))
        assert (await second.run("import torch; x = torch.ones(4); x.sum().item()")).text == "4.0"
        await executor.replace()
        assert (await second.run("x.sum().item()")).text == "4.0"
        third = await executor.notebook(environment="second-1.0")
        assert (await third.run(where)).text == str((str(scratch / "second"), True))
        records = {record.session: record.environment for record in await executor.client.sessions()}
        assert records == {first.session: "", second.session: "second-1.0", third.session: "second-1.0"}
        with pytest.raises(Refused, match="no environment 'third'"):
            await executor.notebook(environment="third")
        await first.run(own_folder)
        await second.run(own_folder)
        assert "Successfully installed" in (await second.run(f"%pip install --no-index {wheel}")).text
        assert (await second.run("import own_package; own_package.answer")).text == "42"
        await first.run("%pip list")  # finds this environment's folder, had it one
        assert (await first.run("import own_package")).error == "ModuleNotFoundError"


def refusal(name: str, python: Path | str) -> str:
    """Return the sentence for which no executor starts with this environment."""
    with pytest.raises(ConfigError) as refused:
        open_environments({name: str(python)})
    return str(refused.value)


def test_an_environment_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """At the executor's start, with one sentence.

    The package index has another project's package of the same name, which an environment may have got by mistake.
    """
    bare = make_environment(tmp_path / "bare", bare=True)
    lacks = f"bare lacks torch, ipykernel, msgspec, setproctitle, sharedkernel; run `{bare} -m pip"
    assert lacks in refusal("bare", bare)
    assert "the environment none has no interpreter /no/such/python" in refusal("none", "/no/such/python")
    assert "'a/b' cannot be an environment's name" in refusal("a/b", "/usr/bin/python3")
    assert "/bin/false of the environment false does not run as Python" in refusal("false", "/bin/false")
    python = make_environment(tmp_path / "mistaken")
    (folder,) = (tmp_path / "mistaken").glob("lib/python*/site-packages")
    (folder / "sharedkernel" / "protocol").mkdir(parents=True)
    (folder / "sharedkernel" / "__init__.py").write_text("")
    said = refusal("mistaken", python)
    assert "has a package sharedkernel that is not this one" in said
    assert f"`{python} -m pip uninstall sharedkernel`" in said
    assert install_hint("host", pip=f"{python} -m pip") in said
    (folder / "sharedkernel" / "protocol" / "__init__.py").write_text(f"PROTOCOL_VERSION = {PROTOCOL_VERSION - 1}\n")
    assert "the environment mistaken has another version of sharedkernel" in refusal("mistaken", python)
