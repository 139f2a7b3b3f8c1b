"""`%pip install` into the user's own folder, never into the environment that all sessions share.

The folder is a virtual environment without packages of its own whose path leads on to the shared one. So pip sees what
is installed there, counts it as satisfied, and never uninstalls it ("outside environment"); what it adds, this user's
sessions find first.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.utils.process import arg_split

#: name of the environment that this session has; empty: the executor's own
_environment = ""


def use_environment(name: str) -> None:
    """Say in which environment this session runs, and let imports find what the user has installed beside it."""
    global _environment
    _environment = name
    add_to_path()


def overlay() -> Path:
    """Return the user's folder for this environment and version of Python."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return data / "sharedkernel" / (f"{_environment}-{python}" if _environment else python)


def overlay_site_packages() -> Path:
    """Return where the user's own packages are."""
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(overlay())}))


def add_to_path() -> None:
    """Let imports find the user's own packages before the shared ones."""
    own = overlay_site_packages()
    if own.is_dir() and str(own) not in sys.path:
        shared = next((place for place, path in enumerate(sys.path) if path.endswith("site-packages")), len(sys.path))
        sys.path.insert(shared, str(own))


def _make_overlay() -> Path:
    python = overlay() / "bin" / "python"
    if not python.exists():
        venv.EnvBuilder(symlinks=True, with_pip=False).create(overlay())
        shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        shared += [path for path in site.getsitepackages() if path not in shared]
        own = overlay_site_packages()
        lines = [path for path in shared if path != str(own)]
        (own / "shared_environment.pth").write_text("\n".join(lines) + "\n")
    return python


@magics_class
class PackageMagics(Magics):
    """Replaces IPython's `%pip` in a session."""

    @line_magic
    def pip(self, line: str) -> None:
        """Run pip for this user; `install` goes to the user's own folder and is importable at once."""
        arguments = [argument for argument in arg_split(line, posix=True) if argument != "--user"]
        command = [str(_make_overlay()), "-m", "pip", *arguments]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self._print(result.stdout)
        add_to_path()
        if result.returncode == 0 and arguments[:1] == ["install"]:
            self._print(f"Installed for you alone, in {overlay()}; restart the kernel if it was imported already.\n")

    @staticmethod
    def _print(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
