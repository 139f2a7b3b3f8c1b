"""The steps of binder/ in an environment of their own, as repo2docker takes them; deselected unless asked for.

It downloads and builds what an image would hold, which takes minutes: ``make binder`` runs it.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.local_stack import free_port

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-the-test"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only"),
]


class Image:
    """What repo2docker would make: the repository as committed, and an environment that its commands find first."""

    def __init__(self, directory: Path) -> None:
        self.repository = directory / "repository"
        self._prefix = directory / "environment"
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(self.repository, filter="data")
        venv.create(self._prefix, with_pip=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "SHAREDKERNEL"))}
        # A person's own settings for Jupyter would be there as well, but for these; those for downloads are kept.
        empty = {
            name: str(directory / name.lower())
            for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        }
        commands = {"PATH": f"{self._prefix / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(self._prefix)}
        self.environment = kept | empty | commands

    def start(self, *command: str | Path, **options: object) -> subprocess.Popen[str]:
        """Start *command* in the repository."""
        return subprocess.Popen(
            [*command], cwd=self.repository, env=self.environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, **options,
        )  # type: ignore[call-overload, no-any-return]  # fmt: skip

    def run(self, *command: str | Path) -> str:
        """Run *command* in the repository, to its end; return what it said."""
        process = self.start(*command)
        said, _ = process.communicate()
        assert process.returncode == 0, said
        return said


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Take the steps of a build."""
    image = Image(tmp_path_factory.mktemp("b"))
    version = (image.repository / "binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    assert version >= "3.11"
    image.run("python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "-r", "binder/requirements.txt")
    image.run(image.repository / "binder" / "postBuild")
    return image


@pytest.fixture
def address(image: Image) -> Iterator[str]:
    """Start JupyterLab as a container does, and return where it answers."""
    port = free_port()
    lab = image.start(
        image.repository / "binder" / "start", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
        f"--IdentityProvider.token={TOKEN}", *(["--allow-root"] if os.getuid() == 0 else []),
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                ask(url, "/api/status")
                break
            except OSError:
                assert lab.poll() is None, lab.communicate()[0]
                assert time.monotonic() < deadline, "JupyterLab does not answer"
                time.sleep(0.1)
        yield url
    finally:
        lab.terminate()
        said, _ = lab.communicate(timeout=60)
        print(said)  # noqa: T201 (shown beside the failed test)


def ask(url: str, path: str) -> tuple[str, str]:
    """Return where a request ended, and the answer."""
    request = urllib.request.Request(url + path, headers={"Authorization": f"token {TOKEN}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.url, answer.read().decode()


def test_the_extension_is_built_and_enabled(image: Image) -> None:
    """From the sources, without anything but Python there before."""
    assert re.search(r"sharedkernel v\S+ .*enabled.*OK", image.run("jupyter", "labextension", "list"))


def test_jupyterlab_opens_with_the_tour_and_the_kernel(address: str) -> None:
    """Its first page is the tour, which is there, and the kernel is among those to choose from."""
    assert ask(address, "/")[0].endswith("/lab/tree/binder/tour.ipynb")
    assert json.loads(ask(address, "/api/contents/binder/tour.ipynb")[1])["type"] == "notebook"
    specs = json.loads(ask(address, "/api/kernelspecs")[1])
    assert "Shared GPU" in specs["kernelspecs"]["shared-gpu"]["spec"]["display_name"]
