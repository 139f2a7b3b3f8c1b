"""Compare what two runs of one notebook show.

What no two runs on a stock kernel agree on is made the same first: addresses, ids, folders, process numbers, how often
a bar was drawn, and in which order stdout and stderr were flushed. Numbers may be set aside as well, with their units
and the padding of tables: times and random figures differ from run to run.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from nbformat import NotebookNode

from benchmarks.notebooks.running import OK, TOO_LONG, Cell, Run

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CELL_FILE = re.compile(r"[\w./-]*/ipykernel_\d+/\d+\.py")
_TEMPORARY = re.compile(rf"(?:/tmp|{re.escape(tempfile.gettempdir())})/[\w./-]+")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_IDENTIFIER = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}(?![0-9a-f])")
_PROCESS = re.compile(r"\b(pid|process)([ =:]+)\d+", re.IGNORECASE)
#: what libraries put before their log lines: `2026-01-31 12:00:00,000`, `W0131 12:00:00.000000 4711`, `4711:4711`
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?")
_GLOG = re.compile(r"\b([DIWEF])\d{4} \d\d:\d\d:\d\d\.\d+ \d+")
_THREAD = re.compile(r"\b(\d{3,}):\1\b")
_REDRAWN = re.compile(r"[^\n]*\r(?!\n)")
_NUMBER = re.compile(
    r"[-+]?(?:\d[\d.,:]*(?:e[-+]?\d+)?|\bnan\b|\binf\b)(?:\s?(?:it/s|s/it|[nuµμm]?s|[KMGkmg]?i?[Bb]|%)(?![\w]))?"
)
#: torch calls a module by other frames where there is a hook on all modules, as there may be in a session
_MODULE_CALL = "in Module._call_impl"
_PADDING = re.compile(r"[\s#,\[\]()|+±-]+")
#: the index of a difference that is none of a cell's
WHOLE_NOTEBOOK = -1


class Shown(NamedTuple):
    """One output, as compared."""

    #: such as ``stream stdout`` or ``display_data image/png,text/plain``
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A cell whose outputs differ between two runs."""

    #: of the cell in the notebook, or :data:`WHOLE_NOTEBOOK`
    index: int
    first: list[Shown]
    other: list[Shown]


def shown(outputs: list[NotebookNode], folder: str) -> list[Shown]:
    """Return a cell's *outputs* as they are compared, *folder* being where the notebook ran."""
    found: list[Shown] = []
    streams: dict[str, str] = {}
    for output in outputs:
        if output.output_type == "stream":
            streams[output.name] = streams.get(output.name, "") + output.text
            continue
        found += _flushed(streams, folder)
        if output.output_type == "error":
            lines = "\n".join(frame for frame in output.traceback if _MODULE_CALL not in _ESCAPES.sub("", frame))
            found.append(Shown("error", normalised(f"{output.ename}: {output.evalue}\n{lines}", folder)))
        else:
            kinds = ",".join(sorted(output.data))
            texts = (_text_of(kind, output.data[kind], folder) for kind in sorted(output.data))
            found.append(Shown(f"{output.output_type} {kinds}", "\n".join(texts)))
    return found + _flushed(streams, folder)


def normalised(text: str, folder: str) -> str:
    """Return *text* without what differs between any two runs.

    >>> normalised("<A at 0x7f12> from /tmp/ipykernel_12/345.py", "/tmp/notebook-1")
    '<A at ADDRESS> from CELL'
    """
    text = _ESCAPES.sub("", text).replace(folder, "FOLDER")
    for pattern, replacement in (
        (_CELL_FILE, "CELL"), (_TEMPORARY, "PATH"), (_ADDRESS, "ADDRESS"), (_IDENTIFIER, "ID"),
        (_TIME, "TIME"), (_GLOG, r"\1 TIME"), (_THREAD, "N:N"), (_PROCESS, r"\1\2N"), (_REDRAWN, ""),
    ):  # fmt: skip
        text = pattern.sub(replacement, text)
    return text


def without_numbers(text: str) -> str:
    """Return *text* with each number, and its unit, made the same.

    >>> without_numbers("took 12.5 ms (of 3 s)") == without_numbers("took   1.2 s (of 412 ms)")
    True
    """
    return _PADDING.sub(" ", _NUMBER.sub(" 0 ", text)).strip()


def differences(first: Run, other: Run, *, numbers: bool) -> Iterator[Difference]:
    """Yield where the *other* run shows something else than the *first*.

    Parameters
    ----------
    first, other
        Runs of the same notebook.
    numbers
        Whether numbers and images' contents must be the same too.
    """
    if first.outcome != other.outcome:
        yield Difference(WHOLE_NOTEBOOK, [_ending(first)], [_ending(other)])
    for one, two in zip(_ended(first), _ended(other), strict=False):
        before, after = _all_of(one, first.folder), _all_of(two, other.folder)
        if not _alike(before, after, numbers=numbers):
            yield Difference(one.index, before, after)
    if first.outcome == other.outcome == OK:
        before, after = _widgets(first), _widgets(other)
        if not _alike(before, after, numbers=numbers):
            yield Difference(WHOLE_NOTEBOOK, before, after)


def _ending(run: Run) -> Shown:
    return Shown("end", f"{run.outcome}, {len(run.cells)} cells")


def _ended(run: Run) -> list[Cell]:
    """Return a run's cells without the one in which its time was up."""
    return run.cells[:-1] if run.outcome == TOO_LONG else run.cells


def _all_of(cell: Cell, folder: str) -> list[Shown]:
    return [Shown(f"count {cell.execution_count}", ""), *shown(cell.outputs, folder)]


def _alike(first: list[Shown], other: list[Shown], *, numbers: bool) -> bool:
    if numbers or first == other:
        return first == other
    return [kind for kind, _ in first] == [kind for kind, _ in other] and all(
        "image/" in kind or without_numbers(one) == without_numbers(two)
        for (kind, one), (_, two) in zip(first, other, strict=True)
    )


def _flushed(streams: dict[str, str], folder: str) -> list[Shown]:
    """Return and forget the *streams* so far; a stock kernel flushes the two in either order."""
    found = [Shown(f"stream {name}", normalised(streams[name], folder)) for name in sorted(streams)]
    streams.clear()
    return found


def _text_of(kind: str, value: Any, folder: str) -> str:
    if kind.startswith("image/") and not kind.endswith("+xml"):
        return hashlib.sha256(value.encode()).hexdigest()
    return normalised(
        value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False), folder
    )


def _widgets(run: Run) -> list[Shown]:
    """Return the states of a run's widgets, in the order in which they were made."""
    texts = (
        normalised(json.dumps(model, sort_keys=True, ensure_ascii=False), run.folder) for model in run.widgets.values()
    )
    return [Shown("widget", text) for text in texts]
