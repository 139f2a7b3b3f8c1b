"""What the pages know of the status document is what Python writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "labextension" / "statustypes.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the script that writes the files."""
    spec = importlib.util.spec_from_file_location("statustypes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schema_and_the_types_are_those_of_the_document(script: ModuleType) -> None:
    """`make schema` writes both anew."""
    assert script.SCHEMA.read_text() == script.schema_text(), "run `make schema`"
    assert script.TYPES.read_text() == script.types_text(), "run `make schema`"


def test_the_types_tell_what_may_be_absent_or_null(script: ModuleType) -> None:
    """A field of some devices has a question mark; one that may be unknown is null."""
    text = script.types_text()
    for line in ("  lanes_shared?: boolean;", "  queue_position: number | null;", "  sessions: ISessionStatus[];"):
        assert f"{line}\n" in text
