"""Python environments that the admin names: each session has the one that it was asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.distribution import install_hint
from sharedkernel.errors import Refused
from tests.executor.environments import MARKER, make_environment
from tests.executor.harness import Executor, ExecutorProcess
from tests.executor.sessions.test_packages import make_wheel


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def process(python: Path) -> Iterator[ExecutorProcess]:
    """Yield an executor with a second environment."""
    process = ExecutorProcess("--environment", f"second-1.0={python}")
    yield process
    process.close()


@pytest.mark.heavy
async def test_sessions_run_where_they_were_asked_to(process: ExecutorProcess, python: Path) -> None:
    """Side by side with those of the executor's own environment, also when another executor has taken over."""
    async with Executor(process) as executor:
        assert executor.client.environments == ["second-1.0"]
        first, second = await executor.notebook(), await executor.notebook(environment="second-1.0")
        assert (await first.run(f"import {MARKER}")).error == "ModuleNotFoundError"
        where = f"import {MARKER}, sys; sys.prefix, {MARKER}.where.startswith(sys.prefix)"
        assert (await second.run(where)).text == str((str(python.parents[1]), True))
        assert (await second.run("import torch; x = torch.ones(4); x.sum().item()")).text == "4.0"
        await executor.replace()
        assert (await second.run("x.sum().item()")).text == "4.0"
        third = await executor.notebook(environment="second-1.0")
        assert (await third.run(where)).text == str((str(python.parents[1]), True))
        records = {record.session: record.environment for record in await executor.client.sessions()}
        assert records == {first.session: "", second.session: "second-1.0", third.session: "second-1.0"}
        with pytest.raises(Refused, match="no environment 'third'"):
            await executor.notebook(environment="third")


@pytest.mark.heavy
async def test_what_is_installed_in_one_environment_is_not_in_another(process: ExecutorProcess, tmp_path: Path) -> None:
    """`%pip install` is for the user's sessions of the same environment."""
    wheel = make_wheel(tmp_path)
    own_folder = f"import os; os.environ['XDG_DATA_HOME'] = {str(tmp_path / 'data')!r}"

    async with Executor(process) as executor:
        first, second = await executor.notebook(), await executor.notebook(environment="second-1.0")
        await first.run(own_folder)
        await second.run(own_folder)
        assert "Successfully installed" in (await second.run(f"%pip install --no-index {wheel}")).text
        assert (await second.run("import own_package; own_package.answer")).text == "42"
        await first.run("%pip list")  # finds this environment's folder, had it one
        assert (await first.run("import own_package")).error == "ModuleNotFoundError"


def refusal(option: str, directory: Path) -> str:
    """Return what an executor with this environment says as it ends."""
    command = [sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", str(directory)]
    done = subprocess.run([*command, "--environment", option], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            "bare={bare}",
            "the environment bare lacks torch, ipykernel, msgspec, setproctitle, sharedkernel; run `{bare} -m pip",
        ),
        ("none=/no/such/python", "the environment none has no interpreter /no/such/python"),
        ("a/b=/usr/bin/python3", "'a/b' cannot be an environment's name"),
        ("false=/bin/false", "/bin/false of the environment false does not run as Python"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(option: str, expected: str, tmp_path: Path) -> None:
    """At the executor's start, with one sentence."""
    bare = make_environment(tmp_path / "bare", bare=True) if "{bare}" in option else None
    assert expected.format(bare=bare) in refusal(option.format(bare=bare), tmp_path / "run")


def test_another_projects_package_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """The package index has one, which an environment may have got by mistake."""
    python = make_environment(tmp_path / "mistaken")
    (folder,) = (tmp_path / "mistaken").glob("lib/python*/site-packages")
    (folder / "sharedkernel").mkdir()
    (folder / "sharedkernel" / "__init__.py").write_text("")
    said = refusal(f"mistaken={python}", tmp_path / "run")
    assert (
        f"has a package sharedkernel that is not this one; run `{python} -m pip uninstall sharedkernel`, then" in said
    )
    assert install_hint("host", pip=f"{python} -m pip") in said
