"""The wheels that a machine without network needs to run the kit.

    python benchmarks/gpu/offline/pins.py fetch FOLDER   # download those of wheels.txt that the folder lacks
    python benchmarks/gpu/offline/pins.py renew          # write wheels.txt anew, with the newest versions that fit

The machine has a CUDA build of torch with what that brings (`there.txt`), and Python 3.12 on x86-64. Everything else
that the extras `host`, `cuda` and `lab` need is in `wheels.txt`, with its version and hash, and pytest for the
kit's tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]

HERE = Path(__file__).parent
PROJECT = HERE.parents[2] / "pyproject.toml"
PYTHON = "3.12"
#: of the extra `lab`, what no step of the kit uses
UNUSED = {"jupyterlab", "scikit-learn", "jupyter-sharedkernel"}
#: of the developers' packages, what the kit's tests need
TESTS = {"pytest", "pytest-timeout", "hypothesis"}
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]


def normal(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def there() -> set[str]:
    """Return the names of the packages that the machine has."""
    return set((HERE / "there.txt").read_text().split())


def pins() -> dict[str, str]:
    """Return the lines of `wheels.txt` by package."""
    return {line.partition("==")[0]: line for line in (HERE / "wheels.txt").read_text().splitlines()}


def version(line: str) -> str:
    """Return the version in a line of `wheels.txt`."""
    return line.partition("==")[2].split()[0]


def required() -> Iterator[Requirement]:
    """Return what the project asks for by itself and is not there."""
    document = tomllib.loads(PROJECT.read_text())
    extras = document["project"]["optional-dependencies"]
    texts = [*document["project"]["dependencies"], *extras["host"], *extras["cuda"], *extras["lab"]]
    groups = [Requirement(text) for text in document["dependency-groups"]["dev"] if isinstance(text, str)]
    yield from (each for each in groups if each.name in TESTS)
    yield from (each for each in map(Requirement, texts) if normal(each.name) not in UNUSED | there())


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    subprocess.run([*command, *(word for platform in PLATFORMS for word in ("--platform", platform))], check=True)


def renew() -> None:
    """Write `wheels.txt` with the newest versions that fit; pip decides by the Python that runs it what is needed."""
    if not sys.version.startswith(PYTHON):
        print(f"run this with Python {PYTHON}, or compare with what the test says", file=sys.stderr)  # noqa: T201
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--report", str(report), "--target", place]
        _pip("install", *options, *map(str, required()))
        found = json.loads(report.read_text())["install"]
    lines = []
    for each in found:
        name, digest = normal(each["metadata"]["name"]), each["download_info"]["archive_info"]["hashes"]["sha256"]
        if name not in there():
            lines.append(f"{name}=={each['metadata']['version']} --hash=sha256:{digest}\n")
    (HERE / "wheels.txt").write_text("".join(sorted(lines)))


def fetch(folder: Path) -> None:
    """Make *folder* have the wheels of `wheels.txt`, and no others."""
    folder.mkdir(exist_ok=True)
    lines = {line.split()[0]: line for line in pins().values()}
    for path in folder.glob("*.whl"):
        name, number = path.name.split("-")[:2]
        if lines.pop(f"{normal(name)}=={number}", None) is None:
            path.unlink()
    if lines:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as missing:
            missing.write("\n".join(lines.values()))
            missing.flush()
            _pip("download", "--no-deps", "--require-hashes", "--dest", str(folder), "--requirement", missing.name)


def main() -> int:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["renew"]:
            renew()
        case ["fetch", folder]:
            fetch(Path(folder))
        case _:
            print((__doc__ or "").rstrip(), file=sys.stderr)  # noqa: T201
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
