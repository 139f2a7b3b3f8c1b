"""The user's own packages, beside the environment that all sessions share.

They are in a virtual environment of the user's, the *overlay*, which has no packages by itself and whose path leads on
to the shared environment. So pip sees what is installed there, counts it as satisfied, and never uninstalls it
("outside environment"); what it adds, this user's sessions find first.

A session has its overlay activated: ``pip`` and ``python`` on its path and `sys.executable` are the overlay's. So
``%pip``, ``!pip``, ``!python -m pip`` and programs that the notebook starts all use the same packages as the notebook,
and none of them changes the shared environment.

What the process that sessions are forked from has imported already, no overlay can replace. Where a user has installed
another version of that, their sessions start afresh, with the overlay first; but not with a version that this package
cannot run with, nor after two starts that failed.
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
from collections import defaultdict
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magics.packaging import PackagingMagics
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sharedkernel.distribution import DISTRIBUTION
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
#: starts that fail before sessions go without the overlay's own versions of what is imported already
_MOST_FAILED_STARTS = 2
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


def overlay(environment: str | None = None, *, home: str | None = None) -> Path:
    """Return the user's folder for an environment and this version of Python.

    Parameters
    ----------
    environment
        Its name; None: this session's.
    home
        Where the user is at home; None: this process's user.
    """
    shared = os.environ.get("XDG_DATA_HOME") if home is None else None
    data = Path(shared or Path(home or Path.home()) / ".local" / "share")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    name = _environment if environment is None else environment
    return data / "sharedkernel" / (f"{name}-{python}" if name else python)


def overlay_site_packages(environment: str | None = None, *, home: str | None = None) -> Path:
    """Return where the user's own packages are; the parameters are those of :func:`overlay`."""
    return _site_packages(overlay(environment, home=home))


def _site_packages(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder)}))


# --- in place of what is imported already -----------------------------------


def other_versions(own: Path) -> list[str]:
    """Return the names of modules in *own*, an overlay's packages, of which this process has others; mostly none."""
    try:
        names = {entry.name.partition(".")[0] for entry in own.iterdir()} - {"__pycache__"}
    except OSError:  # there is no overlay yet
        return []
    files = ((name, getattr(sys.modules.get(name), "__file__", None)) for name in names)
    return sorted(name for name, file in files if file is not None and not Path(file).is_relative_to(own))


def why_failing(own: Path) -> str | None:
    """Return, as a sentence, why sessions do not start with the packages in *own*, an overlay's; None: they may."""
    if (failed := _failed_starts(own)) < _MOST_FAILED_STARTS:
        return None
    return (
        f"{failed} starts with your own packages failed, so this session has the shared ones of those that it imports "
        "before a notebook starts. Uninstall what you installed last with %pip, and restart."
    )


def unfit(own: Path) -> dict[str, str]:
    """Return the modules in *own*, an overlay's packages, that sessions cannot run with, and why not, as sentences.

    Looked at is what this package needs, and what that needs, with what is installed beside it.
    """
    needed = _requirements()
    found = {}
    for distribution in metadata.distributions(path=[str(own)]):
        name, version = canonicalize_name(distribution.name), distribution.version
        for requirement, needing in needed.get(name, ()):
            if not requirement.specifier.contains(version, prereleases=True):
                why = f"Your own {name} {version} is not used: {needing} needs {name}{requirement.specifier}."
                modules = {file.parts[0].partition(".")[0] for file in distribution.files or ()}
                found.update(dict.fromkeys({name.replace("-", "_"), *modules}, why))
    return found


def _requirements() -> dict[str, list[tuple[Requirement, str]]]:
    """Return what this package and all that it needs require, by name, each with the name of who does."""
    needed: defaultdict[str, list[tuple[Requirement, str]]] = defaultdict(list)
    waiting = [(DISTRIBUTION, extra) for extra in ("", "host", "cuda")]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        try:
            requirements = metadata.requires(name) or ()
        except PackageNotFoundError:
            continue
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed[canonicalize_name(requirement.name)].append((requirement, name))
                more = {(requirement.name, wanted) for wanted in ("", *requirement.extras)} - seen
                seen |= more
                waiting += more
    return needed


def starts_with(own: Path) -> None:
    """Note that this process starts a session with the packages in *own*; :func:`has_started` follows, or it failed."""
    with contextlib.suppress(OSError):
        _starts(own).mkdir(exist_ok=True)
        (_starts(own) / str(os.getpid())).write_text(str(own.stat().st_mtime_ns))


def has_started(own: Path) -> None:
    """Note that it has started, and forget the starts that failed before."""
    for start in _known_starts(own):
        if start.name == str(os.getpid()) or not _is_under_way(start):
            start.unlink(missing_ok=True)


def _failed_starts(own: Path) -> int:
    """Return how many starts failed since the packages in *own* changed last; several may be under way at a time."""
    with contextlib.suppress(OSError):
        changed = str(own.stat().st_mtime_ns)
        return sum(start.read_text() == changed and not _is_under_way(start) for start in _known_starts(own))
    return 0


def _is_under_way(start: Path) -> bool:
    return Path("/proc", start.name).exists()


def _known_starts(own: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(_starts(own).iterdir())
    return []


def _starts(own: Path) -> Path:
    """Return the folder that has a file for each start that was not seen to succeed, by its process."""
    return own.parent / "starts"


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
