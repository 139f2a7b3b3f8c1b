"""The gateway's log holds no token, wherever it came from."""

from __future__ import annotations

import logging
import sys

import pytest

from sharedkernel.gateway.http.logs import RedactingFormatter, redact

OURS, JUPYTERS, HUBS = f"sk-0123abcd-{'5e' * 32}", "6f" * 24, "7a" * 16


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f"404 GET /api/kernels/{OURS} (ada)", "404 GET /api/kernels/sk-0123abcd-[secret] (ada)"),
        (f"said {OURS.upper()}.", "said SK-0123ABCD-[secret]."),
        (f"{{'a': '{JUPYTERS}'}}", "{'a': '[secret]'}"),
        (f"/x?token={HUBS}&a=1", "/x?token=[secret]&a=1"),
        (f"/x?token%3D{HUBS}", "/x?token%3D[secret]"),
        (f"'Authorization': 'Bearer {HUBS}'", "'Authorization': 'Bearer [secret]'"),
    ],
)
def test_what_looks_like_a_token_is_redacted(text: str, redacted: str) -> None:
    """The id of one of ours stays, so that its user can be found."""
    assert redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "kernel 01234567-89ab-cdef-0123-456789abcdef of ada started",
        "a client with session 0123456789abcdef0123456789abcdef",
        "the token has 5 characters and can be guessed; use at least 16, or remove it from the configuration.",
        "refused POST /api/kernels (too_many_failures): too many wrong tokens came from 192.0.2.17.",
    ],
)
def test_other_text_stays(text: str) -> None:
    """Ids of kernels and sessions, and sentences about tokens."""
    assert redact(text) == text


def test_exceptions_are_redacted_too() -> None:
    """Their text and their traceback."""
    try:
        raise ValueError(f"no such thing: {OURS}")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, __file__, 1, "%s failed", (JUPYTERS,), sys.exc_info())
    text = RedactingFormatter(logging.Formatter()).format(record)
    assert "ValueError: no such thing: sk-0123abcd-[secret]" in text
    assert text.startswith("[secret] failed")
