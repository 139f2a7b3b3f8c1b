"""The counter of `make lines`."""

from __future__ import annotations

from tests.lines import count_code

SOURCE = '''"""A module."""

import os  # which counts


class Example:
    """A class.

    Notes
    -----
    """

    #: a comment
    text = """one
two

four"""

    def method(self) -> str:
        """Return a string."""
        return (
            self.text
        )
'''


def test_lines_without_code_are_not_counted() -> None:
    """Neither blank ones, also in a string, nor comments and docstrings."""
    assert count_code(SOURCE) == 1 + 1 + 3 + 1 + 3
    assert count_code("") == 0
