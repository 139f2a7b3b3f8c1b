"""The file of what passed before."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from sharedkernel.selftest.runner import Identity, TrustFile, TrustUnusable

CARD = Identity(driver="580.65", torch="2.11.0+cu130", card="NVIDIA H200", uuid="GPU-1")


def test_what_passed_is_trusted_from_then_on(tmp_path: Path) -> None:
    """A file that is not there trusts nothing, and is made; nothing else is left beside it."""
    path = tmp_path / "trust.json"
    assert TrustFile(path).passed(CARD) == frozenset()
    TrustFile(path).record(CARD, ["training", "peaks"])
    assert TrustFile(path).passed(CARD) == {"training", "peaks"}
    TrustFile(path).record(CARD, ["training"])
    assert TrustFile(path).passed(CARD) == {"training"}
    assert [each.name for each in tmp_path.iterdir()] == ["trust.json"]


@pytest.mark.parametrize("field", Identity.__struct_fields__)
def test_another_driver_torch_card_or_version_is_not_trusted(tmp_path: Path, field: str) -> None:
    """Each has an entry of its own, and keeps it."""
    file = TrustFile(tmp_path / "trust.json")
    other = msgspec.structs.replace(CARD, **{field: "another"})
    file.record(CARD, ["training"])
    assert file.passed(other) == frozenset()
    file.record(other, ["peaks"])
    assert (file.passed(CARD), file.passed(other)) == ({"training"}, {"peaks"})


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[]", "[" * 100_000, "\x00\xff", '{"passed": []}', "c.ServerApp.port = 1",
        '{"sharedkernel_self_test": 1}', '{"sharedkernel_self_test": 2, "passed": []}',
        '{"sharedkernel_self_test": 1, "passed": [1]}', '{"sharedkernel_self_test": 1, "passed": [{"steps": [1]}]}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_trusted_in_nothing_and_left_alone(tmp_path: Path, text: str) -> None:
    """One sentence says so; it may be somebody's configuration."""
    path = tmp_path / "trust.json"
    path.write_text(text, encoding="latin-1")
    for use in (TrustFile(path).passed, lambda card: TrustFile(path).record(card, ["training"])):
        with pytest.raises(TrustUnusable, match=r"is no file of self-test results, so none is trusted; remove it"):
            use(CARD)
    assert path.read_text(encoding="latin-1") == text


def test_a_file_that_cannot_be_read_or_written_is_one_sentence(tmp_path: Path) -> None:
    """A directory, and one that is not there."""
    with pytest.raises(TrustUnusable, match="cannot be read"):
        TrustFile(tmp_path).passed(CARD)
    with pytest.raises(TrustUnusable, match=r"cannot be written to .*; name another file\.$"):
        TrustFile(tmp_path / "missing" / "trust.json").record(CARD, ["training"])


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no half of another is beside it."""
    path = tmp_path / "trust.json"
    TrustFile(path).record(CARD, ["training"])
    before = path.read_text()

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(TrustUnusable, match="No space left"):
        TrustFile(path).record(CARD, ["peaks"])
    assert path.read_text() == before
    assert json.loads(before)["passed"][0]["card"] == "NVIDIA H200"
    assert [each.name for each in tmp_path.iterdir()] == ["trust.json"]
