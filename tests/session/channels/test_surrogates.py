"""Text with lone surrogates, which a stock kernel cannot send."""

from __future__ import annotations

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from tests.session.harness import SessionUnderTest, run_on_both

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
def test_text_with_lone_surrogates_arrives(session: SessionUnderTest, stock: BlockingKernelClient) -> None:
    """With a mark in the place of each; text that a stock kernel can send arrives as from there."""
    assert session.run(r"print('before \ud800'); print('after')")["text"] == "before \ufffd\nafter\n"
    assert session.run(r"raise ValueError('\ud800')")["evalue"] == "\ufffd"
    assert session.run(r"print('\ud83d' + '\ude00')")["text"] == "\U0001f600\n"
    for code in (r"print('\U0001f600 \xe9')", r"import os; print(os.fsdecode(b'a\xff'))", _NOT_JSON):
        ours, theirs = run_on_both(session, stock, code)
        assert ours == theirs
