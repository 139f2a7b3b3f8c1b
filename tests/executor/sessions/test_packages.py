"""`%pip install` in a session: for its user alone."""

from __future__ import annotations

import asyncio
import shutil
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import typing_extensions

from sharedkernel.errors import SharedKernelError
from sharedkernel.session.kernel import packages
from tests.executor.harness import Executor, ExecutorProcess

pytestmark = pytest.mark.heavy


def make_wheel(folder: Path) -> Path:
    """Write a wheel of one module, `own_package`, that requires torch (which the shared environment has)."""
    path = folder / "own_package-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\nRequires-Dist: torch\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("own_package.py", "answer = 42\n")
        wheel.writestr("own_package-1.0.dist-info/METADATA", metadata)
        wheel.writestr("own_package-1.0.dist-info/WHEEL", tags)
        wheel.writestr("own_package-1.0.dist-info/RECORD", "")
    return path


async def test_pip_installs_for_the_user_and_leaves_the_shared_environment_alone(
    process: ExecutorProcess, tmp_path: Path
) -> None:
    """The package can be imported at once, nowhere else; torch, which it needs, is not installed again."""
    wheel = make_wheel(tmp_path)
    home = f"import os; os.environ['XDG_DATA_HOME'] = {str(tmp_path / 'data')!r}"

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run(home)
        outcome = await notebook.run(f"%pip install --no-index --user {wheel}")
        assert "Successfully installed own-package-1.0" in outcome.text
        assert outcome.text.endswith("Note: you may need to restart the kernel to use updated packages.\n")
        assert (await notebook.run("import own_package; own_package.answer")).text == "42"
        where = (await notebook.run("own_package.__file__")).text
        assert str(tmp_path) in where
        assert "Successfully" not in (await notebook.run("%pip list")).text
        stranger = await executor.notebook("grace")
        assert (await stranger.run("import own_package")).error == "ModuleNotFoundError"
        failed = await notebook.run("%pip install --no-index no-such-package-at-all")
        assert "No matching distribution" in failed.text
    assert not list(Path(sys.prefix).rglob("own_package*"))  # noqa: ASYNC240
    assert not list((tmp_path / "data").rglob("torch"))


async def test_a_line_of_pip_is_one_of_the_shell(process: ExecutorProcess, tmp_path: Path) -> None:
    """Notes, pipes, redirections and quotes, as with IPython's own `%pip`; and it says what it says to the notebook."""
    wheel = make_wheel(tmp_path)

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run(f"import os; os.environ['XDG_DATA_HOME'] = {str(tmp_path / 'my data')!r}")
        outcome = await notebook.run(f"%pip install --quiet --no-index '{wheel}'  # what we need")
        assert outcome.text == "Note: you may need to restart the kernel to use updated packages.\n"
        assert (await notebook.run("import own_package; own_package.answer")).text == "42"
        listed = (await notebook.run("%pip list --format=freeze | grep -c '^own-package'")).text
        assert listed.splitlines()[0] == "1"
        await notebook.run(f"%pip show own-package > {tmp_path / 'log'} 2>&1")
        assert "Name: own-package" in (tmp_path / "log").read_text()


async def test_every_way_to_pip_is_the_users_own(process: ExecutorProcess, tmp_path: Path) -> None:
    """Also by the path, by the module, by the interpreter's name and from Python; what is shared stays as it is."""
    make_wheel(tmp_path)

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run(f"import os; os.environ['XDG_DATA_HOME'] = {str(tmp_path / 'data')!r}")
        await notebook.run("import subprocess, sys\n%pip --version")
        options = f"--no-index --find-links {tmp_path}"
        for command in (
            f"%%bash\npip install --user {options} own-package",
            f"!python -m pip install {options} own-package",
            f"subprocess.run([sys.executable, *'-m pip install {options} own-package'.split()], check=True)",
        ):
            assert "Successfully installed own-package-1.0" in (await notebook.run(command)).text, command
            found = "import msgspec, own_package, sharedkernel; print(own_package.__file__)"
            assert str(tmp_path / "data") in (await notebook.run(f'!python -c "{found}"')).text, command
            removed = (await notebook.run("!pip3 uninstall --yes own-package")).text
            assert "Successfully uninstalled own-package-1.0" in removed, command
        assert "own_package" in (await notebook.run(f"!pip download {options} --no-deps own-package")).text
        kept = (await notebook.run("!pip uninstall --yes msgspec")).text
        assert "outside environment" in kept
        assert (await notebook.run("import own_package")).error == "ModuleNotFoundError"
    assert not list(Path(sys.prefix).rglob("own_package*"))  # noqa: ASYNC240


#: a module that every session has imported, and its distribution's version
_LOOK = """
import typing_extensions, importlib.metadata as m
print(m.version('typing_extensions'), getattr(typing_extensions, 'mine', None))
"""


@pytest.fixture
def own() -> Iterator[Path]:
    """Yield where a session's user has their own packages."""
    folder = packages.overlay_site_packages("")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    shutil.rmtree(packages.overlay(""))


def install(own: Path, name: str, version: str, source: str) -> None:
    """Put a module into *own*, as pip would."""
    information = own / f"{name}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (own / f"{name}.py").write_text(source)


async def test_another_version_of_what_is_imported_comes_with_a_restart(process: ExecutorProcess, own: Path) -> None:
    """Its user's sessions start afresh; one with which they cannot start is left out after two tries, and said."""
    usual, source = metadata.version("typing_extensions"), Path(typing_extensions.__file__).read_text()  # noqa: ASYNC240

    async with Executor(process) as executor:
        before = await executor.notebook()
        assert (await before.run(_LOOK)).text == f"{usual} None\n"
        install(own, "typing_extensions", "4.99.0", f"{source}\nmine = True\n")
        after, *others = await asyncio.gather(*(executor.notebook() for _ in range(3)))  # each counts for itself
        for notebook in (after, *others):
            assert (await notebook.run(_LOOK)).text == "4.99.0 True\n"
        assert (await after.run("import torch; print(torch.ones(2).sum().item())")).text == "2.0\n"
        assert "typing_extensions" in (await after.run("%pip list")).text
        (own / "typing_extensions.py").write_text("raise ImportError('broken')\n")
        for _ in range(2):
            with pytest.raises(SharedKernelError):
                await executor.notebook()
        last = await executor.notebook()
        outcome = await last.run(_LOOK)
        assert "2 starts with your own packages failed, so this session has the shared ones" in outcome.text
        assert outcome.text.endswith("4.99.0 None\n")


async def test_no_version_is_used_that_sessions_cannot_run_with(process: ExecutorProcess, own: Path) -> None:
    """It says which, what is needed, and how to be rid of it."""
    install(own, "msgspec", "0.1", "raise ImportError('too old')\n")
    source = Path(typing_extensions.__file__).read_text()  # noqa: ASYNC240

    async with Executor(process) as executor:
        outcome = await (await executor.notebook()).run("import msgspec; print(hasattr(msgspec, 'Struct'))")
        assert "Your own msgspec 0.1 is not used: jupyter-sharedkernel needs msgspec>=" in outcome.text
        assert outcome.text.endswith("True\n")
        install(own, "typing_extensions", "4.99.0", f"{source}\nmine = True\n")  # beside it, one that is fit
        outcome = await (await executor.notebook()).run(_LOOK)
        assert "Your own msgspec 0.1 is not used" in outcome.text
        assert outcome.text.endswith("4.99.0 True\n")
