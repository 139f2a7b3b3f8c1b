"""Building and running, without the software GPU itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.software_gpu import build as build_module
from tests.software_gpu import run as run_module
from tests.software_gpu.build import BuildError, Environment, build


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sharedkernel" / "software-gpu"


def test_without_a_compiler_one_sentence_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is downloaded then."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"^There is no cc here, which .* compiler\.$"):
        build()
    assert not cache.exists()


def test_without_the_wheels_one_sentence_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No half-built environment is left."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BuildError, match=r"^Installing torch failed: ERROR: "):
        build()
    assert [path.name for path in cache.iterdir()] == ["lock"]


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


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    """A build that was not used for long is removed as well."""
    for name in ("partial-torch-1", "torch-old", "torch-new"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "torch-old", (0, time.time() - 40 * 86400))
    build_module._remove_unused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["torch-new"]


def test_capacity_is_a_quarter_of_free_memory_at_most() -> None:
    """Several devices share that quarter."""
    one = run_module.default_capacity()
    assert one <= 1 << 30
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2 * run_module.default_capacity(2) <= available // 4


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


def test_the_directory_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    """That of a living run stays."""
    dead, living = (tmp_path / f"software-gpu-{name}" for name in ("dead", "living"))
    for directory in (dead, living):
        directory.mkdir()
        (directory / "lock").touch()
    run_module.SHARED_MEMORY, before = tmp_path, run_module.SHARED_MEMORY
    try:
        with build_module._locked(living / "lock"), run_module.private_directory():
            assert not dead.exists()
            assert living.exists()
    finally:
        run_module.SHARED_MEMORY = before


def test_a_run_loads_the_driver_before_the_libraries_that_need_it(tmp_path: Path) -> None:
    """What computes torch's operations is loaded by the driver, later."""
    for name in ("libcublas.so.13", "libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1", "liboperations.so"):
        (tmp_path / name).touch()
    names = [path.name for path in Environment("0", (), tmp_path).preloaded()]
    assert names == ["libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1", "libcublas.so.13"]
