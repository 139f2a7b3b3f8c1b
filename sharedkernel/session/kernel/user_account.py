"""Become the user of a session: account, limits, home directory, profile and working directory.

Called once, on the main thread, before any user code runs. The C library changes the account of all threads together.

A session starts in the notebook's directory if that is on this machine too, else in the user's home directory. Where
users have homes of their own, it starts nowhere else: a path that leads out of the home (``..``, a link) counts as
outside, whatever a client sends.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path

from ipykernel.kernelapp import IPKernelApp
from IPython.core.profiledir import ProfileDir
from IPython.paths import get_ipython_dir

from sharedkernel.protocol import Account
from sharedkernel.session.kernel.account import become


def enter(account: Account) -> None:
    """Take on *account*; after this, files and processes are the user's.

    Raises
    ------
    OSError
        When that is not possible; the process must end then.
    """
    old_site = site.getusersitepackages()
    become(account)
    # Torch chose one for the account of the warm parent, in /tmp, where others could place code for it to run.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(account.home, ".cache", "torchinductor"))
    _move_user_site(old_site)


def _move_user_site(old: str) -> None:
    """Forget the other home's packages and find this one's."""
    sys.path[:] = [path for path in sys.path if path != old]
    site.USER_BASE = site.USER_SITE = None
    new = site.getusersitepackages()
    if site.ENABLE_USER_SITE and Path(new).is_dir():
        site.addsitedir(new)


def open_profile(app: IPKernelApp) -> None:
    """Give the kernel of *app* the user's own IPython profile: history and startup files."""
    app.ipython_dir = get_ipython_dir()
    app.profile_dir = ProfileDir.create_profile_dir_by_name(app.ipython_dir, "default")
    shell = app.shell
    assert shell is not None
    shell.ipython_dir, shell.profile_dir = app.ipython_dir, app.profile_dir
    shell.config.HistoryManager.enabled = True
    shell.init_history()
    app._run_startup_files()


def enter_directory(cwd: str | None, notebook: str | None, *, own_home: bool) -> str | None:
    """Go to the notebook's folder, or else home; return what the user should be told about it.

    Parameters
    ----------
    cwd
        The folder that the notebook has where its user is; a relative one is below home.
    notebook
        Its path there, below the folder that its Jupyter serves.
    own_home
        Whether sessions start in their user's home only, or below it.
    """
    home = Path.home()
    for folder in _directories(home, cwd, notebook, own_home=own_home):
        try:
            os.chdir(folder)
        except (OSError, ValueError):  # ValueError: a null byte
            continue
        return None
    os.chdir(home)
    if cwd is None or Path(cwd) == home:
        return None
    where = "in your home on" if own_home else "on"
    return f"The notebook's folder {cwd} is not {where} the machine with the device; working in {home} there."


def _directories(home: Path, cwd: str | None, notebook: str | None, *, own_home: bool) -> Iterator[Path]:
    if cwd is not None:
        folder = home / cwd  # an absolute path stays as it is
        if _is_inside(folder, home) or (Path(cwd).is_absolute() and not own_home):
            yield folder
    if notebook is not None and own_home:
        folder = home / Path(notebook).parent
        if folder != home and _is_inside(folder, home):
            yield folder


def _is_inside(folder: Path, home: Path) -> bool:
    try:
        return folder.resolve().is_relative_to(home.resolve())
    except (OSError, ValueError, RuntimeError):  # a loop of links, a null byte
        return False
