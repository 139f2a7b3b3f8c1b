"""What tests of several folders share."""

from __future__ import annotations

import asyncio
import atexit
import gc
import inspect
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.event_loop import run_until_closed
from tests.processes import busy
from tests.small_disk import mounted
from tests.warm import end_places

# For every process that is started from here, too. Threads of several small computations at once spend their time
# waiting for each other: the examples side by side took three times the processor, and five times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Sessions keep packages of their user's own in the one, services what outlives a reboot in the other.
for name in ("XDG_DATA_HOME", "XDG_STATE_HOME"):
    os.environ[name] = tempfile.mkdtemp(prefix="sk-data-")
    atexit.register(shutil.rmtree, os.environ[name], ignore_errors=True)

# A machine may stand still for seconds, also while an example is drawn or tried. And a change is judged by the same
# examples whenever it is; `--hypothesis-profile=default` tries others.
settings.register_profile(
    "suite", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# ten times as many, in `make slow`
settings.register_profile("thorough", settings.get_profile("suite"), max_examples=250)
settings.load_profile("suite")


#: folders of tests that take long or need more than Python, which are in `make test-all` and not in `make test`
HEAVY = ("binder", "browser", "conformance", "docs", "faults", "fuzz", "labextension", "memory", "unmodified")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let any test be run on a busy machine: most faults of measuring and timing do not show on a quiet one."""
    parser.addoption(
        "--busy", type=int, default=0, metavar="LOOPS", help="keep so many processors busy beside the tests"
    )


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of these folders, and skip those for the software GPU elsewhere."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in HEAVY:
            item.add_marker(pytest.mark.heavy)
        if item.get_closest_marker("software_gpu") and "SOFTWARE_GPU_DIRECTORY" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="runs on the software GPU, with `make test-software-gpu`"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(run_until_closed(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})))
    return True


def pytest_collection_finish() -> None:
    """Keep what is there by now out of collections, which some tests have done: they took half a second each."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Collect what the tests have left while all modules are there."""
    gc.unfreeze()
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def warm_places() -> Iterator[None]:
    """End the warm parents that tests have left to each other."""
    yield
    end_places()


@pytest.fixture(scope="session", autouse=True)
def busy_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep processors busy beside all tests, if that was asked for."""
    with busy(request.config.getoption("--busy")):
        yield


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on a file system of 4 MiB; skipped where none can be mounted."""
    with mounted(tmp_path):
        yield tmp_path


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an empty directory for temporary files whose path is short enough for sockets in it."""
    return tmp_path_factory.mktemp("t")
