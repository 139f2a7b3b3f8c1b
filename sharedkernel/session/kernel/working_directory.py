"""Where a session's code runs: in the notebook's folder if it is on this machine too, or else in the user's home.

Where users have homes of their own, a session starts nowhere else: a folder outside is no place to start in, whatever
a client says, and a path that leads out of the home (``..``, a link) counts as outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def enter(cwd: str | None, notebook: str | None, *, own_home: bool) -> str | None:
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
    for folder in _candidates(home, cwd, notebook, own_home=own_home):
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


def _candidates(home: Path, cwd: str | None, notebook: str | None, *, own_home: bool) -> Iterator[Path]:
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
