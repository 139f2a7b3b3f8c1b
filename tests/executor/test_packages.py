"""`%pip install` in a session: for its user alone."""

from __future__ import annotations

import asyncio
import sys
import zipfile
from pathlib import Path

from tests.executor.harness import Executor, ExecutorProcess


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


def test_pip_installs_for_the_user_and_leaves_the_shared_environment_alone(
    process: ExecutorProcess, tmp_path: Path
) -> None:
    """The package can be imported at once, nowhere else; torch, which it needs, is not installed again."""
    wheel = make_wheel(tmp_path)
    home = f"import os; os.environ['XDG_DATA_HOME'] = {str(tmp_path / 'data')!r}"

    async def main() -> None:
        async with Executor(process) as executor:
            notebook = await executor.notebook()
            await notebook.run(home)
            outcome = await notebook.run(f"%pip install --no-index --user {wheel}")
            assert "Successfully installed own-package-1.0" in outcome.text
            assert (await notebook.run("import own_package; own_package.answer")).text == "42"
            where = (await notebook.run("own_package.__file__")).text
            assert str(tmp_path) in where
            assert "Successfully" not in (await notebook.run("%pip list")).text
            stranger = await executor.notebook("grace")
            assert (await stranger.run("import own_package")).error == "ModuleNotFoundError"
            failed = await notebook.run("%pip install --no-index no-such-package-at-all")
            assert "No matching distribution" in failed.text

    asyncio.run(main())
    assert not list(Path(sys.prefix).rglob("own_package*"))
    assert not list((tmp_path / "data").rglob("torch"))
