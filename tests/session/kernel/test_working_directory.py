"""Where a session starts, given what a client says about its notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedkernel.session.kernel.user_account import enter_directory


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with a folder, and with links that lead out of it and nowhere."""
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    (home / "out").symlink_to("/usr")
    (home / "loop").symlink_to("loop")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
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
    said = enter_directory(None if cwd is None else cwd.format(home=home), notebook, own_home=own_home)
    assert Path.cwd() == (home / expected).resolve()
    assert bool(said) == is_told
    assert "working in" in (said or "") or not is_told
