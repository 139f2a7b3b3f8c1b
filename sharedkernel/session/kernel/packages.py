"""The user's own packages, beside the environment that all sessions share.

They are in a virtual environment of the user's, the *overlay*, which has no packages by itself and whose path leads on
to the shared environment. So pip sees what is installed there, counts it as satisfied, and never uninstalls it
("outside environment"); what it adds, this user's sessions find first.

A session has its overlay activated: ``pip`` and ``python`` on its path and `sys.executable` are the overlay's. So
``%pip``, ``!pip``, ``!python -m pip`` and programs that the notebook starts all use the same packages as the notebook,
and none of them changes the shared environment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import site
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from types import SimpleNamespace

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magics.packaging import PackagingMagics

from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: runs the overlay's Python from wherever that is; there is one user anyway, and pip refuses that option in an overlay
_PIP = """#!/bin/sh
'''exec' "$(dirname "$0")/python" "$0" "$@"
' '''
import sys
from pip._internal.cli.main import main
sys.argv[1:] = [argument for argument in sys.argv[1:] if argument != "--user"]
sys.exit(main())
"""
_USER_OPTION = re.compile(r"(?<!\S)--user(?!\S)")

#: name of the environment that this session has; empty: the executor's own
_environment = ""


def use_environment(name: str) -> None:
    """Say in which environment this session runs, and activate what the user has installed beside it.

    Parameters
    ----------
    name
        Of the environment; empty: the executor's own.
    """
    global _environment
    _environment = name
    try:
        activate()
    except OSError as error:
        log.warning("there is no place for packages of the user's own: %s", error)


def activate() -> None:
    """Have imports, and programs that are started from here, find the user's own packages before the shared ones.

    Raises
    ------
    OSError
        When the overlay cannot be made.
    """
    programs = _make_overlay() / "bin"
    sys.executable = str(programs / "python")
    if (spawn := sys.modules.get("multiprocessing.spawn")) is not None:  # else it looks when it is imported
        spawn.set_executable(sys.executable)
    path = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry != str(programs)]
    os.environ["PATH"] = os.pathsep.join([str(programs), *path])
    if "VIRTUAL_ENV" in os.environ:
        os.environ["VIRTUAL_ENV"] = str(overlay())
    own = str(overlay_site_packages())
    if own not in sys.path:
        shared = next((place for place, path in enumerate(sys.path) if path.endswith("site-packages")), len(sys.path))
        sys.path.insert(shared, own)


def overlay() -> Path:
    """Return the user's folder for this environment and version of Python."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return data / "sharedkernel" / (f"{_environment}-{python}" if _environment else python)


def overlay_site_packages() -> Path:
    """Return where the user's own packages are."""
    return _site_packages(overlay())


def _site_packages(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder)}))


class _Builder(venv.EnvBuilder):
    """Makes an environment without scripts for shells to activate it."""

    def setup_scripts(self, context: SimpleNamespace) -> None:
        """Write none."""


def _make_overlay() -> Path:
    """Return the overlay, whole and leading on to the shared environment as it is now."""
    folder = overlay()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Another session of the user's may do the same: the first one to be complete stays.
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as scratch:
            new = Path(scratch) / folder.name
            _Builder(symlinks=True, with_pip=False).create(new)
            with contextlib.suppress(OSError):
                new.rename(folder)
    elif not (folder / "bin" / "python").exists():  # the Python that it was made with is gone
        _Builder(symlinks=True, with_pip=False, upgrade=True).create(folder)
    shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    shared += [path for path in site.getsitepackages() if path not in shared]
    shared = [path for path in shared if path != str(_site_packages(folder))]
    # As Python itself adds them: with the path files that are in them.
    lines = "; ".join(["import site", *(f"site.addsitedir({path!r})" for path in shared)])
    _write(_site_packages(folder) / "shared_environment.pth", lines + "\n")
    for name in ("pip", f"pip{sys.version_info.major}", f"pip{sys.version_info.major}.{sys.version_info.minor}"):
        _write(folder / "bin" / name, _PIP, mode=0o755)
    return folder


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file that others may read meanwhile, unless it says so already."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    replace_file(path, text, mode=mode, durable=False)


@magics_class
class PackageMagics(Magics):
    """IPython's `%pip`, for the user's own packages."""

    @line_magic
    def pip(self, line: str) -> None:
        """Run pip for this user; `install` goes to the user's own folder and is importable at once."""
        activate()
        PackagingMagics(self.shell).pip(_USER_OPTION.sub("", line))  # type: ignore[misc, call-arg]  # untyped decorator
