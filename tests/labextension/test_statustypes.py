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


def test_the_pages_have_what_python_writes(script: ModuleType) -> None:
    """`make schema` writes the readers and the figures anew."""
    for path, text in script.texts().items():
        assert path.read_text() == text, "run `make schema`"


def test_each_field_and_figure_is_one_entry(script: ModuleType) -> None:
    """What has to be there is refused where it is missing; what may be unknown is null; tables alone are left out."""
    text = script.texts()[script.SOURCES / "statusdocument.ts"]
    for line in ("id: need(isText)", "used: or(isFlag, true)", "share: or(isAmount, 1)", "until: or(isNumber, null)",
                 "still_has: list(need(isText))", "draining: maybe(readDraining)"):  # fmt: skip
        assert f"  {line}" in text
    text = script.texts()[script.SOURCES / "figures.ts"]
    assert (
        "  left: { place: 'line', unit: 'about', fields: ['time_left_seconds'], whole: null, "
        "words: (amount, trans) => trans.__('about %1 left', amount) },\n"
    ) in text
    assert "iterations" not in text
