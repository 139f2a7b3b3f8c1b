"""Directories that root makes for users, and what somebody else may have put in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError, Refused
from sharedkernel.executor.isolation.accounts import (
    NUMBERS_FILE,
    Numbers,
    closed_ancestor,
    directory_name,
    least_login_uid,
    make_directory_of,
    make_shared_directory,
)
from tests.executor.isolation import needs_root

UID = 231900


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return make_shared_directory(tmp_path / "shared", named_by="--homes")


@needs_root
def test_a_user_s_directory_is_theirs_alone(shared: Path) -> None:
    """Made once, found again; one that was made and not handed over is handed over."""
    (shared / "half").mkdir()
    for name in ("ada", "ada", "half"):
        found = make_directory_of(shared, name, UID, UID).stat()
        assert (found.st_uid, found.st_gid) == (UID, UID)
    assert stat.S_IMODE((shared / "ada").stat().st_mode) == 0o700
    assert stat.S_IMODE(shared.stat().st_mode) == 0o711


def put(place: Path, what: str, target: Path) -> None:
    """Put something into the *place* of a directory; a link leads to *target*."""
    target.mkdir()
    if what == "a link":
        place.symlink_to(target)
    elif what == "a file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)


@needs_root
@pytest.mark.parametrize("what", ["a link", "a file", "another's", "root's, in use"])
def test_what_is_in_its_place_is_refused_and_left_alone(shared: Path, tmp_path: Path, what: str) -> None:
    """Above all a link is not followed: what it leads to keeps its owner."""
    place, target = shared / "ada", tmp_path / "target"
    put(place, what, target)
    if what == "another's":
        os.chown(place, UID + 1, UID + 1)
    elif what == "root's, in use":
        (place / "file").touch()
    before = os.lstat(place)
    with pytest.raises(Refused, match="the admin has to"):
        make_directory_of(shared, "ada", UID, UID)
    assert os.lstat(place).st_uid == before.st_uid
    assert target.stat().st_uid == os.getuid()


@pytest.mark.parametrize("what", ["a link", "a file", "open to others"])
def test_a_directory_of_directories_is_ours_alone(tmp_path: Path, what: str) -> None:
    """Where others could put a link, nothing is made."""
    place = tmp_path / "shared"
    put(place, what, tmp_path / "target")
    with pytest.raises(ConfigError, match="--homes"):
        make_shared_directory(place, named_by="--homes")


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("ada", "ada"),
        ("ada@example.org", "ada@example.org"),
        ("..", "%2E."),
        ("../root", "%2E.%2Froot"),
        (".ssh", "%2Essh"),
        ("ä\0", "%C3%A4%00"),
        ("%2E.", "%252E."),
    ],
)
def test_no_name_leads_out_of_its_directory(user: str, name: str) -> None:
    """What could be a path is quoted, so that no two users share a directory."""
    assert directory_name(user) == name


def test_closed_directories_are_found(tmp_path: Path) -> None:
    """The first one on the way that others cannot pass is named."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b").chmod(0o755)
    (tmp_path / "a").chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a" / "b")
    assert closed_ancestor(Path("/usr")) is None
    assert closed_ancestor(link) in (tmp_path / "a", *tmp_path.parents, tmp_path)


def test_numbers_are_given_once_until_none_is_left(tmp_path: Path) -> None:
    """Two executors that share the file agree; the last number is followed by a sentence."""
    first, second = (Numbers(tmp_path, range(UID, UID + 2)) for _ in range(2))
    assert [first.give("ada"), second.give("grace"), first.give("grace"), second.give("ada")] == [
        UID, UID + 1, UID + 1, UID,
    ]  # fmt: skip
    with pytest.raises(Refused, match="no user id is left in --uid-range"):
        first.give("linus")
    assert stat.S_IMODE((tmp_path / NUMBERS_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 2, "uids": {}}', '{"version": 1, "uids": {"ada": 0}}',
     '{"version": 1, "uids": {"ada": 231900, "grace": 231900}}', '{"version": 1, "uids": {"ada": true}}'],
)  # fmt: skip
def test_a_file_of_numbers_that_cannot_be_right_is_refused(tmp_path: Path, text: str) -> None:
    """Nobody gets another's number, least of all root's; the file is left as it is."""
    (tmp_path / NUMBERS_FILE).write_text(text)
    with pytest.raises(ConfigError, match="restore it from a backup"):
        Numbers(tmp_path, range(UID, UID + 2))
    assert (tmp_path / NUMBERS_FILE).read_text() == text


def test_the_system_s_own_accounts_are_told_by_its_definitions(tmp_path: Path) -> None:
    """Where it has none, those below 1000 are."""
    definitions = tmp_path / "login.defs"
    assert least_login_uid(definitions) == 1000
    definitions.write_text("# UID_MIN 1\nUID_MIN\t\t500\n")
    assert least_login_uid(definitions) == 500
