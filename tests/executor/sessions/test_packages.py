"""`%pip install` in a session: for its user alone."""

from __future__ import annotations

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


async def test_every_way_to_pip_installs_for_the_user_and_leaves_the_shared_environment_alone(
    process: ExecutorProcess, tmp_path: Path
) -> None:
    """The package can be imported at once, nowhere else; torch, which it needs, is not installed again.

    `%pip` is a line of the shell, as IPython's own; also by the path, by the module, by the interpreter's name and from
    Python it is the user's.
    """
    wheel, data = make_wheel(tmp_path), tmp_path / "my data"

    async with Executor(process) as executor:
        notebook, stranger = await executor.notebooks("ada", "grace")
        await notebook.run(f"import os, subprocess, sys; os.environ['XDG_DATA_HOME'] = {str(data)!r}")
        outcome = await notebook.run(f"%pip install --quiet --no-index --user '{wheel}'  # what we need")
        assert outcome.text == "Note: you may need to restart the kernel to use updated packages.\n"
        assert (await notebook.run("import own_package; own_package.answer")).text == "42"
        assert (await stranger.run("import own_package")).error == "ModuleNotFoundError"
        listed = (await notebook.run("%pip list --format=freeze | grep -c '^own-package'")).text
        assert listed.splitlines()[0] == "1"
        await notebook.run(f"%pip show own-package > {tmp_path / 'log'} 2>&1")
        assert "Name: own-package" in (tmp_path / "log").read_text()
        failed = await notebook.run("%pip install --no-index no-such-package-at-all")
        assert "No matching distribution" in failed.text
        options = f"--no-index --no-deps --find-links {tmp_path} own-package"
        for command in (
            f"%%bash\npip install --user --force-reinstall {options}",
            f"!python -m pip install --force-reinstall {options}",
            f"subprocess.run([sys.executable, *'-m pip install --force-reinstall {options}'.split()], check=True)",
        ):
            assert "Successfully installed own-package-1.0" in (await notebook.run(command)).text, command
        found = "import msgspec, own_package, sharedkernel; print(own_package.__file__)"
        assert str(data) in (await notebook.run(f'!python -c "{found}"')).text
        assert "own_package" in (await notebook.run(f"!pip download {options}")).text
        removed = (await notebook.run("!pip3 uninstall --yes own-package msgspec")).text
        assert "Successfully uninstalled own-package-1.0" in removed
        assert "outside environment" in removed
    assert not list(Path(sys.prefix).rglob("own_package*"))  # noqa: ASYNC240
    assert not list(data.rglob("torch"))


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
    """Its user's sessions start afresh; one with which they cannot start is left out after two tries, and said.

    Of one that they cannot run with, it is said which, and what is needed; no session starts afresh for that.
    """
    usual, source = metadata.version("typing_extensions"), Path(typing_extensions.__file__).read_text()  # noqa: ASYNC240
    unfit = "Your own msgspec 0.1 is not used: jupyter-sharedkernel needs msgspec>="

    async with Executor(process) as executor:
        before = await executor.notebook()
        assert (await before.run(_LOOK)).text == f"{usual} None\n"
        install(own, "msgspec", "0.1", "raise ImportError('too old')\n")
        outcome = await (await executor.notebook()).run("import msgspec; print(hasattr(msgspec, 'Struct'))")
        assert unfit in outcome.text
        assert outcome.text.endswith("True\n")
        install(own, "typing_extensions", "4.99.0", f"{source}\nmine = True\n")  # beside it, one that is fit
        after, *others = await executor.notebooks("ada", "ada", "ada")  # each counts for itself
        for notebook in (after, *others):
            outcome = await notebook.run(_LOOK)
            assert unfit in outcome.text
            assert outcome.text.endswith("4.99.0 True\n")
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
