"""Build what tests on the software GPU need, outside the checkout: torch's CUDA build, packages and libraries.

Three folders in the cache, each named by a hash of what it was made from, and shared by all checkouts:

torch-…
    torch as the package index has it, and what it imports, without NVIDIA's libraries and Triton.
packages-…
    what sharedkernel and its tests need beside torch.
libraries-…
    the software GPU, compiled for that torch, and stubs in the place of NVIDIA's libraries.

A folder appears under its name when it is complete: an interrupted build leaves nothing, and of two at once the second
waits. Folders that were not used for a month are removed.

    python -m tests.software_gpu.build [--torch newest]
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tests.software_gpu.stubs import build_stubs, write_missing_runtime_calls

CHECKOUT = Path(__file__).parents[2]
DEFAULT_TORCH = "2.11.0"
#: of pip's downloads and of the compiler's
_TIMEOUT_SECONDS = 1800
_UNUSED_SECONDS = 30 * 86400
_NATIVE = Path(__file__).with_name("native")
#: distributions of torch's requirements that are not installed: NVIDIA's, in whose place there are stubs, and Triton
_LEFT_OUT = re.compile(r"nvidia-|cuda-toolkit|cuda-bindings|triton$")
#: development tools that the tests on the software GPU import, or that pytest's configuration names
_TEST_TOOLS = frozenset({
    "cloudpickle", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "tqdm", "trustme", "websocket-client",
})  # fmt: skip

_C_FLAGS = (
    "-std=c17", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden",
    "-Wno-unused-parameter",  # signatures are NVIDIA's
)  # fmt: skip
_CPP_FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
_DRIVER = (
    "settings", "state", "physical", "contexts", "attributes", "virtual_memory", "memory", "transfers", "streams",
    "graphs", "launch", "unsupported",
)  # fmt: skip


class BuildError(Exception):
    """Why the software GPU cannot be built, in one sentence."""


@dataclass(frozen=True)
class Environment:
    """What a run needs.

    Attributes
    ----------
    torch
        Version.
    packages
        Folders of packages.
    libraries
        Folder of the software GPU's libraries.
    """

    torch: str
    packages: tuple[Path, ...]
    libraries: Path

    def preloaded(self) -> list[Path]:
        """Return the libraries that a process loads at its start, in order."""
        first = [self.libraries / name for name in ("libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1")]
        rest = sorted(path for path in self.libraries.glob("lib*.so*") if path.name != "liboperations.so")
        return first + [path for path in rest if path not in first]


def cache_directory() -> Path:
    """Return the folder of all environments."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sharedkernel" / "software-gpu"


def build(torch: str = DEFAULT_TORCH) -> Environment:
    """Return an environment, which is built if there is none.

    Parameters
    ----------
    torch
        Its version, or "newest".

    Raises
    ------
    BuildError
        When there is no compiler, or the index does not have the packages.
    """
    compilers = [_find_program("cc", "gcc"), _find_program("c++", "g++")]
    for tool in ("nm", "readelf"):
        _find_program(tool)
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "lock"):
        _remove_unused(cache)
        if torch == "newest":
            torch = _newest_torch()
        python = f"{sysconfig.get_config_var('SOABI')}-{platform.machine()}"
        torch_folder = _make(cache, "torch", [torch, python], lambda folder: _install_torch(torch, folder))
        requirements = _project_requirements()
        packages = _make(cache, "packages", [python, *requirements], lambda folder: _pip(folder, requirements))
        files = [*sorted(_NATIVE.iterdir()), Path(__file__), Path(__file__).with_name("stubs.py")]
        sources = [path.read_text(encoding="utf-8") for path in files]
        made_from = [torch_folder.name, *sources]
        libraries = _make(
            cache, "libraries", made_from, lambda folder: _compile_libraries(torch_folder, folder, compilers)
        )
    return Environment(torch, (torch_folder, packages), libraries)


def _find_program(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise BuildError(
        f"There is no {names[0]} here, which the software GPU is built with; install a C and C++ compiler."
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(cache: Path, kind: str, made_from: Iterable[str], fill: Callable[[Path], None]) -> Path:
    """Return the folder of this kind made from these texts; *fill* it if it is not there."""
    digest = hashlib.sha256(json.dumps(list(made_from)).encode()).hexdigest()[:16]
    folder = cache / f"{kind}-{digest}"
    if not folder.exists():
        partial = cache / f"partial-{kind}-{os.getpid()}"
        begun = time.monotonic()
        try:
            partial.mkdir()
            fill(partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        print(f"built {folder} in {time.monotonic() - begun:.0f} s", file=sys.stderr)  # noqa: T201
    os.utime(folder)
    return folder


def _remove_unused(cache: Path) -> None:
    """Remove partial builds and builds that have not been used for long; the caller holds the lock."""
    for folder in cache.iterdir():
        is_unused = folder.is_dir() and time.time() - folder.stat().st_mtime > _UNUSED_SECONDS
        if folder.name.startswith("partial-") or is_unused:
            shutil.rmtree(folder, ignore_errors=True)


# --- packages ---


def _run(command: list[str], what: str) -> str:
    """Return the output of a command; it ends with this process."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{what} took longer than {_TIMEOUT_SECONDS} s.") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        print(output, file=sys.stderr)  # noqa: T201
        lines = [line for line in output.splitlines() if re.search("error", line, re.IGNORECASE)]
        raise BuildError(f"{what} failed: {(lines or ['exit status ' + str(process.returncode)])[0].strip()}")
    return output


def _pip(folder: Path, requirements: Iterable[str], *options: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *options]
    _run([*command, *requirements], "Installing " + ("torch" if options else "packages"))


def _newest_torch() -> str:
    """Return the newest version that pip would install, which its constraints may keep below the index's newest."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", report.name]
        _run([sys.executable, "-m", "pip", "install", *options, "torch"], "Asking for torch's newest version")
        found = json.load(report)["install"][0]["metadata"]["version"]
    return Version(found).public


def _install_torch(version: str, folder: Path) -> None:
    _pip(folder, [f"torch=={version}"], "--no-deps")
    metadata = next(folder.glob("torch-*.dist-info")) / "METADATA"
    declared = re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(encoding="utf-8"), re.MULTILINE)
    requirements = [Requirement(text) for text in declared]
    needed = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    toolkit = next((one for one in needed if one.name == "cuda-toolkit"), None)
    if toolkit is None:
        raise BuildError(f"torch {version} is not built for CUDA 13 or newer, which the software GPU is written for.")
    minor = ".".join(next(iter(toolkit.specifier)).version.split(".")[:2])
    headers = [f"nvidia-cuda-{part}=={minor}.*" for part in ("runtime", "crt")]
    bindings = [str(one) for one in needed if one.name == "cuda-bindings"] or ["cuda-bindings>=13,<14"]
    _pip(folder, [*headers, *(text.split(";")[0] for text in bindings), "cuda-pathfinder"], "--no-deps")
    _pip(folder, [str(one) for one in needed if not _LEFT_OUT.match(one.name)], "--upgrade")


def _project_requirements() -> list[str]:
    """Return what sharedkernel needs beside torch, and the tools that tests use."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["host"]]
    declared += [text for text in project["dependency-groups"]["dev"] if isinstance(text, str) and _is_tool(text)]
    return sorted({text for text in declared if Requirement(text).name != "torch"})


def _is_tool(text: str) -> bool:
    return Requirement(text).name in _TEST_TOOLS


# --- libraries ---


def _compile_libraries(torch_folder: Path, folder: Path, compilers: list[str]) -> None:
    cc, cpp = compilers
    headers = ["-isystem", str(torch_folder / "nvidia" / "cu13" / "include")]
    driver = folder / "libcuda.so.1"

    def compile_c(name: str, sources: Iterable[str], *options: str) -> None:
        paths = [str(_NATIVE / f"{source}.c") for source in sources]
        names = ["-o", str(folder / name), f"-Wl,-soname,{name}"]
        _run([cc, *_C_FLAGS, *headers, *paths, *names, *options], f"Compiling {name}")

    beside = [str(driver), "-Wl,-rpath,$ORIGIN"]
    compile_c(driver.name, _DRIVER, "-lpthread", "-ldl", f"-Wl,--version-script={_NATIVE / 'driver.map'}")
    torch = torch_folder / "torch"
    runtime = ("runtime", "runtime_kernels")
    sources = "".join((_NATIVE / f"{source}.c").read_text(encoding="utf-8") for source in runtime)
    missing = folder / "missing.c"
    write_missing_runtime_calls(torch / "lib", sources, missing)
    version = f"-Wl,--version-script={_NATIVE / 'runtime.map'}"
    compile_c("libcudart.so.13", runtime, str(missing), *beside, version)
    missing.unlink()
    compile_c("libnvidia-ml.so.1", ("nvml",), *beside)
    compile_c("libnvrtc.so.13", ("nvrtc",))
    needs_20 = "C++20" in (torch / "include" / "ATen" / "ATen.h").read_text(encoding="utf-8")
    standard = f"-std=c++{20 if needs_20 else 17}"
    _run(
        [cpp, standard, *_CPP_FLAGS, *headers, "-isystem", str(torch / "include"), str(_NATIVE / "operations.cpp"),
         "-o", str(folder / "liboperations.so"), f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10", "-lc10_cuda",
         str(folder / "libcudart.so.13"), *beside],
        "Compiling liboperations.so",
    )  # fmt: skip
    build_stubs(torch / "lib", folder, cc)


def main() -> int:
    """Build an environment and print how to use it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default=DEFAULT_TORCH, help="its version, or `newest`")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing half-built is left
    try:
        environment = build(options.torch)
    except BuildError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"The software GPU for torch {environment.torch} is in {cache_directory()}.")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
