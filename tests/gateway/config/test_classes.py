"""The file of classes: what is kept, and what is made of one that cannot be used."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.config.classes import ClassFile, ClassMember, ClassRecord, Invitation

NOW = datetime.datetime.now(datetime.UTC)


def test_a_class_is_kept_and_its_codes_are_not(tmp_path: Path) -> None:
    """The next gateway knows whose code it is; a change that fails, and one that cannot be kept, changes nothing."""
    path = tmp_path / "conf" / "classes.json"
    file = ClassFile(path)
    (invitation, code), (other, _) = Invitation.make(), Invitation.make()
    members = {"ada": ClassMember(invitation=other), "grace": ClassMember(invitation=invitation), "mary": ClassMember()}
    with file.changing() as classes:
        classes["morning"] = ClassRecord(began=NOW, until=NOW, limits={"cull_after": 60.0}, members=members)
    assert path.stat().st_mode & 0o777 == 0o600
    assert code.partition("-")[2] not in path.read_text()
    with pytest.raises(ZeroDivisionError), file.changing() as classes:
        classes["morning"].limits["cull_after"] = 1 / 0
    again = ClassFile(path)
    assert again.classes == file.classes
    assert again.find(code) == ("morning", "grace")
    assert [again.find(wrong) for wrong in ("", "-", code[:-1], f"{other.id}-{code.partition('-')[2]}")] == [None] * 4
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be kept"), again.changing() as classes:
        classes.clear()
    assert again.find(code) == ("morning", "grace")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"version": 1}',
        '{"classes": {"class": {"began": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z", "members": {}, '
        '"limits": {"memory": "lots"}}}}',
    ],
)
def test_a_file_that_cannot_be_used_is_left(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    """There is no class then, and the log says why."""
    path = tmp_path / "classes.json"
    path.write_text(content)
    assert ClassFile(path).classes == {}
    assert path.read_text() == content
    assert f"the classes in {path} cannot be read" in caplog.text
