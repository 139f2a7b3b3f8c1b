"""The outputs of the cells of one kernel, so that a page that comes later can show them too.

Built from what the kernel publishes, the way a notebook builds its outputs: streams are joined, displays updated,
outputs cleared, and the views of widgets removed that are closed. It holds the last cells only, and of these no more
than a number of bytes: the oldest outputs go first, and the first that is left says so. Pure: `recorder.py` listens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: of notebook format 4
Output = dict[str, Any]

#: kind of data with which an output shows a widget
_WIDGET = "application/vnd.jupyter.widget-view+json"
_DROPPED = "[Earlier outputs were too much to keep while no page showed them.]\n"


@dataclass(slots=True)
class RecordedOutput:
    """One output of a cell."""

    output: Output
    #: by which later messages may change it
    display_id: str | None = None
    #: about its bytes
    size: int = 0


@dataclass(slots=True)
class CellRecord:
    """One run of a cell."""

    #: of the request that ran it
    id: str
    code: str
    execution_count: int | None
    outputs: list[RecordedOutput] = field(default_factory=list)
    #: whether it still runs
    is_open: bool = True
    #: number of the last change, over all cells
    version: int = 0
    #: whether the next output takes the place of those before it
    clear_next: bool = False
    #: whether outputs were dropped
    dropped: bool = False
    #: whether it ended while no page was there, and none has asked for it since
    missed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as a page reads it."""
        outputs = [kept.output for kept in self.outputs]
        if self.dropped:
            outputs.insert(0, {"output_type": "stream", "name": "stderr", "text": _DROPPED})
        return {
            "id": self.id,
            "code": self.code,
            "execution_count": self.execution_count,
            "outputs": outputs,
            "open": self.is_open,
            "missed": self.missed,
        }


class CellRecords:
    """The last cells of one kernel.

    Parameters
    ----------
    is_attended
        Whether a page is there at the moment, which shows what it is sent.
    max_cells
        Runs remembered.
    max_bytes
        Of all their outputs together.
    """

    def __init__(self, is_attended: Callable[[], bool], *, max_cells: int = 50, max_bytes: int = 4 * 1024**2) -> None:
        self._is_attended = is_attended
        self._max_cells = max_cells
        self._max_bytes = max_bytes
        #: by id, oldest first
        self._cells: dict[str, CellRecord] = {}
        #: of all outputs
        self._num_bytes = 0
        #: for what a cell waits: the kernel asks one page, once
        self._question: dict[str, Any] | None = None
        self.version = 0

    @property
    def is_running(self) -> bool:
        """Whether a cell runs."""
        return any(cell.is_open for cell in self._cells.values())

    def since(self, version: int) -> list[dict[str, Any]]:
        """Return the cells that have changed after *version*, oldest first; none counts as missed from then on."""
        changed = [cell for cell in self._cells.values() if cell.version > version]
        asked = self._question and self._question["parent_header"].get("msg_id")
        answer = [
            cell.as_json() | {"question": self._question if cell.is_open and cell.id == asked else None}
            for cell in changed
        ]
        for cell in changed:
            cell.missed = False
        return answer

    def take(self, kind: str, parent: str, content: Mapping[str, Any]) -> None:
        """Take in a message that the kernel published.

        Parameters
        ----------
        kind
            Its type.
        parent
            Id of the request that it belongs to.
        content
            As in Jupyter's messaging protocol.
        """
        if kind == "execute_input":
            self._begin(parent, content)
        elif kind == "update_display_data":
            self._update_displays(content)
        elif kind == "comm_close":
            self._remove_views(content.get("comm_id"))
        elif kind == "status" and content.get("execution_state") in ("restarting", "dead"):
            for cell in self._cells.values():
                self._end(cell)
        elif parent in self._cells:
            self._take_of(self._cells[parent], kind, content)

    def ask(self, question: dict[str, Any] | None) -> None:
        """Keep an input request until it is answered: that is None."""
        asked, self._question = question or self._question, question
        if asked is not None and (cell := self._cells.get(asked["parent_header"].get("msg_id"))):
            self._touch(cell)

    def _take_of(self, cell: CellRecord, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "status" and content.get("execution_state") == "idle":
            self._end(cell)
        elif kind == "clear_output":
            self._clear(cell, wait=bool(content.get("wait")))
        elif kind in ("stream", "display_data", "execute_result", "error"):
            self._add(cell, _output(kind, content), _display_id(content))

    def _begin(self, parent: str, content: Mapping[str, Any]) -> None:
        cell = CellRecord(parent, str(content.get("code", "")), content.get("execution_count"))
        self._cells[parent] = cell
        self._touch(cell)
        while len(self._cells) > self._max_cells:
            self._forget(next(iter(self._cells)))

    def _end(self, cell: CellRecord) -> None:
        if cell.is_open:
            cell.is_open = False
            cell.missed = not self._is_attended()
            self._touch(cell)

    def _clear(self, cell: CellRecord, *, wait: bool) -> None:
        cell.clear_next = wait
        if not wait:
            self._drop(cell, len(cell.outputs))
            self._touch(cell)

    def _add(self, cell: CellRecord, output: Output, display_id: str | None) -> None:
        if cell.clear_next:
            self._clear(cell, wait=False)
        last = cell.outputs[-1].output if cell.outputs else {}
        if output["output_type"] == "stream" and last.get("name") == output["name"]:
            last["text"] += output["text"]
        else:
            cell.outputs.append(RecordedOutput(output, display_id))
        self._measure(cell.outputs[-1])
        self._touch(cell)
        self._shrink()

    def _update_displays(self, content: Mapping[str, Any]) -> None:
        display_id = _display_id(content)
        if display_id is None:
            return
        for cell in self._cells.values():
            for kept in cell.outputs:
                if kept.display_id == display_id:
                    kept.output |= {key: content.get(key) or {} for key in ("data", "metadata")}
                    self._measure(kept)
                    self._touch(cell)
        self._shrink()

    def _remove_views(self, model: object) -> None:
        """Remove the outputs that show a widget that is closed: a page that comes now could not."""
        for cell in self._cells.values():
            for place in reversed(range(len(cell.outputs))):
                data = cell.outputs[place].output.get("data")
                view = data.get(_WIDGET) if isinstance(data, dict) else None
                if isinstance(view, dict) and view.get("model_id") == model:
                    self._num_bytes -= cell.outputs.pop(place).size
                    self._touch(cell)

    def _measure(self, kept: RecordedOutput) -> None:
        text = kept.output.get("text")
        size = len(json.dumps(kept.output, default=str)) if text is None else len(text)
        self._num_bytes += size - kept.size
        kept.size = size

    def _shrink(self) -> None:
        """Drop the oldest outputs until what is left may stay; of a stream that is too long itself, its beginning."""
        for cell in self._cells.values():
            while self._num_bytes > self._max_bytes and cell.outputs:
                cell.dropped = True
                oldest = cell.outputs[0]
                if oldest.size > self._max_bytes // 2 and "text" in oldest.output:
                    oldest.output["text"] = oldest.output["text"][-self._max_bytes // 4 :]
                    self._measure(oldest)
                else:
                    self._drop(cell, 1)

    def _drop(self, cell: CellRecord, number: int) -> None:
        self._num_bytes -= sum(kept.size for kept in cell.outputs[:number])
        del cell.outputs[:number]

    def _forget(self, cell_id: str) -> None:
        cell = self._cells.pop(cell_id)
        self._drop(cell, len(cell.outputs))

    def _touch(self, cell: CellRecord) -> None:
        self.version += 1
        cell.version = self.version


def _output(kind: str, content: Mapping[str, Any]) -> Output:
    """Return a message as an output of notebook format 4."""
    if kind == "stream":
        return {"output_type": kind, "name": str(content.get("name")), "text": str(content.get("text", ""))}
    if kind == "error":
        return {"output_type": kind, **{key: content.get(key) for key in ("ename", "evalue", "traceback")}}
    output: Output = {"output_type": kind, **{key: content.get(key) or {} for key in ("data", "metadata")}}
    if kind == "execute_result":
        output["execution_count"] = content.get("execution_count")
    return output


def _display_id(content: Mapping[str, Any]) -> str | None:
    transient = content.get("transient")
    return transient.get("display_id") if isinstance(transient, Mapping) else None
