"""Where a session starts, given what a client says about its notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ENTER = """if True:
    import os, sys
    from sharedkernel.session.kernel import user_account
    cwd, notebook, own_home = eval(sys.argv[1])
    said = user_account.enter_directory(cwd, notebook, own_home=own_home)
    print(os.getcwd(), said or "", sep="\\n")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with a folder, and with links that lead out of it and nowhere."""
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    (home / "out").symlink_to("/usr")
    (home / "loop").symlink_to("loop")
    return home


@pytest.mark.parametrize(
    ("cwd", "notebook", "own_home", "expected", "is_told"),
    [
        (None, None, True, "", False),
        ("{home}/work", None, True, "work", False),
        ("work", None, True, "work", False),
        (None, "work/a.ipynb", True, "work", False),
        ("/home/of/laptop", "work/a.ipynb", True, "work", False),
        ("/usr", None, True, "", True),
        ("{home}/../..", None, True, "", True),
        ("{home}/work/../../..", None, True, "", True),
        ("{home}/out", None, True, "", True),
        ("{home}/out/bin", None, True, "", True),
        ("{home}/loop", None, True, "", True),
        ("../../etc", "../../../etc/a.ipynb", True, "", True),
        ("a\0b", "a\0b/c.ipynb", True, "", True),
        ("{home}", None, True, "", False),
        ("/usr", None, False, "/usr", False),
        ("../../usr", None, False, "", True),
        ("/no/such/folder", "work/a.ipynb", False, "", True),
    ],
)
def test_a_session_starts_in_its_notebook_s_folder_or_at_home(
    home: Path, cwd: str | None, notebook: str | None, own_home: bool, expected: str, is_told: bool
) -> None:
    """Never outside a home of one's own; the user is told of a folder that is not there."""
    named = None if cwd is None else cwd.format(home=home)
    command = [sys.executable, "-c", _ENTER, repr((named, notebook, own_home))]
    done = subprocess.run(command, env={"HOME": str(home)}, capture_output=True, text=True, check=True)
    where, said = done.stdout.split("\n")[:2]
    assert where == str(home / expected)
    assert bool(said) == is_told
    assert "working in" in said or not is_told
