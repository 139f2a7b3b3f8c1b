"""The wheel: what it weighs, and what JupyterLab finds once it is installed."""

from __future__ import annotations

import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
import venv
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jupyter_core.paths import jupyter_path

from sharedkernel.distribution import DISTRIBUTION

ROOT = Path(__file__).parents[2]
#: bytes; most of them are Python, compressed, which not all implementations of zlib do alike
_LARGEST = 1_196_000
#: bytes of what browsers get, compressed: the extension, and the page with its charts
_LARGEST_FRONT_END = 100_000

_LABEXTENSION = "from jupyterlab.labextensions import main; main()"
_SERVEREXTENSION = "from jupyter_server.extension.serverextension import main; main()"


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [*map(str, command)], env=os.environ | variables, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from the working tree, its extension as it was built before."""
    if not any(os.path.exists(f"{path}/sharedkernel/package.json") for path in jupyter_path("labextensions")):
        pytest.skip("the JupyterLab extension is not built; run `python labextension/build_backend.py`")
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", place, ROOT)
    (wheel,) = place.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own, which borrows what it depends on."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_a_wheel_has_this_projects_name_and_extras(python: Path) -> None:
    """The extras ask for the same distribution, and JupyterLab knows what to uninstall."""
    code = "import json, importlib.metadata as m; print(json.dumps(m.metadata('jupyter-sharedkernel').json))"
    found = json.loads(run(python, "-c", code))
    assert found["name"] == DISTRIBUTION
    assert {"host", "cuda", "jupyterhub", "plot", "lab"} <= set(found["provides_extra"])
    assert not [wanted for wanted in found["requires_dist"] if wanted.startswith("sharedkernel")]
    extension = python.parents[1] / "share" / "jupyter" / "labextensions" / "sharedkernel"
    assert json.loads((extension / "install.json").read_text())["packageName"] == DISTRIBUTION


def test_a_wheel_is_small_and_whole(wheel: Path) -> None:
    """It holds Python, and a page's code in a few files, which git does not have; type checkers read it (PEP 561)."""
    assert wheel.stat().st_size < _LARGEST
    files = zipfile.ZipFile(wheel).infolist()
    front_end = [file for file in files if "/labextensions/" in file.filename or "/static/" in file.filename]
    assert 20_000 < sum(file.compress_size for file in front_end) < _LARGEST_FRONT_END
    page = {f"sharedkernel/gateway/page/static/page.{kind}" for kind in ("js", "css")}
    assert {"sharedkernel/py.typed", *page} <= {file.filename for file in files}


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_gateway_serves_the_wheel_that_it_was_installed_from(
    python: Path, wheel: Path, tmp_path: Path, is_encrypted: bool
) -> None:
    """What its page has people install is the same, but for compression, and pip takes it; other names are unknown.

    Also where the gateway's certificate is its own: pip then checks the hash that is in the command.
    """
    options, context = [], None
    if is_encrypted:
        files = [str(tmp_path / name) for name in ("gpu.crt", "gpu.key")]
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=gpu"]
        run(*make, "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1])
        options, context = ["--certfile", files[0], "--keyfile", files[1]], ssl.create_default_context(cafile=files[0])
    private = {name: str(tmp_path) for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "XDG_RUNTIME_DIR")}
    command = [str(python), "-m", "sharedkernel", "gateway", "--ip", "127.0.0.1", "--port", "0", *options]
    process = subprocess.Popen(command, env=os.environ | private, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        announced = next(line for line in process.stdout if line.startswith("Serving on "))
        url, token = announced.removeprefix("Serving on ").partition(";")[0], announced.split("--token ")[1].split()[0]
        request = urllib.request.Request(f"{url}/sharedkernel/page/me", headers={"Authorization": f"token {token}"})
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            me = json.load(answer)
        assert me["needs_checkout"] is False
        *pip, address = shlex.split(me["install_command"].partition("\n")[0])
        assert address.partition("#")[0] == f"{url}/sharedkernel/package/{wheel.name}"
        assert pip == ["pip", "install", *(["--trusted-host", urlsplit(url).netloc] if is_encrypted else [])]
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, *pip[2:]]
        if is_encrypted:
            other = address[:-1] + ("1" if address.endswith("0") else "0")
            wrong = subprocess.run([*download, other], capture_output=True, text=True, check=False)
            assert wrong.returncode != 0
            assert "THESE PACKAGES DO NOT MATCH THE HASHES" in wrong.stderr
        run(*download, address)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/sharedkernel/package/other.whl", timeout=60, context=context)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    first, second = zipfile.ZipFile(wheel), zipfile.ZipFile(tmp_path / wheel.name)
    assert sorted(first.namelist()) == sorted(second.namelist())
    changed = [name for name in first.namelist() if first.read(name) != second.read(name)]
    assert [name for name in changed if not name.endswith(".dist-info/RECORD")] == []
    venv.create(tmp_path / "user", with_pip=False)
    user = tmp_path / "user" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", user, "install", "--quiet", "--no-deps", tmp_path / wheel.name)
    assert (user.parent / "sharedkernel").is_file()


def test_jupyterlab_finds_the_extension_of_a_wheel(python: Path, tmp_path: Path) -> None:
    """Enabled and as it should be, without Node.js, and so is what it asks in the Jupyter server."""
    private = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "HOME")}
    private["PATH"] = str(python.parent)
    listed = run(python, "-c", _LABEXTENSION, "list", **private)
    assert re.search(r"sharedkernel v\S+ .*enabled.*OK", listed), listed
    assert str(python.parents[1]) in listed
    listed = run(python, "-c", _SERVEREXTENSION, "list", **private)
    assert re.search(r"sharedkernel\.serverextension.*enabled", listed), listed
    assert re.search(r"sharedkernel\.serverextension\s+\S*OK", listed), listed
