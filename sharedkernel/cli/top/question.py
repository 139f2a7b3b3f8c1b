"""The question of ``sharedkernel top`` before it does something to a session."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static


class Question(ModalScreen[bool]):
    """Asks yes or no; any other key than y leaves things as they are.

    Parameters
    ----------
    question
        What is asked.
    consequence
        What follows from yes.
    """

    CSS = """
    Question { align: center middle; }
    Question Vertical { width: 64; max-width: 100%; height: auto; border: round $primary; padding: 0 1; }
    Question Static { height: auto; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        """Yield the box."""
        with Vertical():
            # As rich text, which nothing in a notebook's name can change.
            yield Static(Text(self._question, style="bold"))
            yield Static(Text(self._consequence))
            yield Static(Text("y: yes   n: no"))

    def action_answer(self, yes: bool) -> None:
        """Close the box."""
        self.dismiss(yes)
