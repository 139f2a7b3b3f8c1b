"""Building and running, without the software GPU itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.software_gpu import build as build_module
from tests.software_gpu.build import Environment


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sharedkernel" / "software-gpu"


def test_a_folder_is_made_once_and_whole(tmp_path: Path) -> None:
    """It is there when it is complete; what is made of something else is another folder."""
    filled = []

    def fill(folder: Path) -> None:
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
        (folder / "file").write_text("content")
        filled.append(folder)

    folder = build_module._make(tmp_path, "kind", ["a"], fill)
    assert build_module._make(tmp_path, "kind", ["a"], fill) == folder
    assert len(filled) == 1
    assert (folder / "file").read_text() == "content"

    def fail(folder: Path) -> None:
        (folder / "file").write_text("half of it")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_module._make(tmp_path, "kind", ["b"], fail)
    assert list(tmp_path.iterdir()) == [folder]


def test_what_a_command_leaves_is_ended_and_reported(tmp_path: Path) -> None:
    """A process that outlives the command by long is a failure; the directory goes in any case."""
    code = """if True:
        import sys
        from pathlib import Path
        from tests.software_gpu import run
        from tests.software_gpu.build import Environment
        run._GRACE = 0.3
        with run.private_directory() as directory:
            python = run.prepare(directory, Environment("0", (), Path(sys.argv[1])), {})
            print(directory)
            print(run.run(sys.argv[2:], directory, python), flush=True)
        print(directory.exists())
    """

    def outcome(*command: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path), *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        directory, result, exists = done.stdout.splitlines()
        assert directory.startswith("/dev/shm/software-gpu-")
        assert exists == "False"
        return [result]

    assert outcome("python", "-c", "raise SystemExit(3)") == ["(3, [])"]
    [left] = outcome("sh", "-c", "setsid sleep 60 > /dev/null & exit 0")
    assert left.startswith("(0, ['Process ")
    assert "sleep 60" in left


def test_a_run_loads_the_driver_before_the_libraries_that_need_it(tmp_path: Path) -> None:
    """What computes torch's operations is loaded by the driver, later."""
    for name in ("libcublas.so.13", "libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1", "liboperations.so"):
        (tmp_path / name).touch()
    names = [path.name for path in Environment("0", (), tmp_path).preloaded()]
    assert names == ["libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1", "libcublas.so.13"]
