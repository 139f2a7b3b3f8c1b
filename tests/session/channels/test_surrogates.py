"""Text with lone surrogates, which a stock kernel cannot send."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.harness import SessionUnderTest
from tests.session.stock import run_on_both, stock_kernel

#: prints the place that is warned of
_NOT_JSON = """
import warnings
from IPython.display import publish_display_data
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    publish_display_data({"text/plain": "nan", "application/json": {"a": float("nan")}})
print([warning.filename for warning in caught])
"""


@pytest.mark.heavy
def test_text_with_lone_surrogates_arrives(tmp_path: Path) -> None:
    """With a mark in the place of each; text that a stock kernel can send arrives as from there."""
    with SessionUnderTest() as session, stock_kernel(tmp_path) as stock:
        assert session.run(r"print('before \ud800'); print('after')")["text"] == "before \ufffd\nafter\n"
        assert session.run(r"raise ValueError('\ud800')")["evalue"] == "\ufffd"
        assert session.run(r"print('\ud83d' + '\ude00')")["text"] == "\U0001f600\n"
        for code in (r"print('\U0001f600 \xe9')", r"import os; print(os.fsdecode(b'a\xff'))", _NOT_JSON):
            ours, theirs = run_on_both(session, stock, code)
            assert ours == theirs
