"""How often a log says the same."""

from __future__ import annotations

import logging

from sharedkernel.system.log_filter import RepetitionFilter


def test_repetitions_are_left_out_and_counted() -> None:
    """Whatever their arguments; other texts are written, and a later record says how many were not."""
    now = 0.0
    written: list[str] = []
    log = logging.Logger("test")
    handler = logging.Handler()
    handler.emit = lambda record: written.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    log.addFilter(RepetitionFilter(lambda: now))
    for number in range(100):
        log.warning("refused %d", number)
    log.warning("another")
    now = 60.0
    log.warning("refused %d", 100)
    log.warning("refused %d", 101)
    assert written == [
        *(f"refused {number}" for number in range(5)),
        "another",
        "refused 100 (95 more like this were left out)",
        "refused 101",
    ]
