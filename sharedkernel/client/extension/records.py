"""Records of one kernel for a page that comes later: the outputs of its cells, and its open widgets.

Both are built from what the kernel publishes, and bounded. Pure: `recorder.py` listens.

Outputs are built the way a notebook builds its own: streams are joined, displays updated, outputs cleared, and the
views of widgets removed that are closed. The last cells are held only, and of these no more than a number of bytes: the
oldest outputs go first, and the first that is left says so.

Widgets are opened, updated and closed by messages, and that is enough to answer a page that asks for them while a cell
runs: a kernel answers about its widgets between cells only, so a page that is reloaded during a run of hours would show
none of its bars. Only for the process whose first cell was heard: another one may have widgets of which nothing is
known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sharedkernel.jupyter import wire

#: of notebook format 4
Output = dict[str, Any]

#: kind of data with which an output shows a widget
_WIDGET = "application/vnd.jupyter.widget-view+json"
_DROPPED = "[Earlier outputs were too much to keep while no page showed them.]\n"

_TARGET = "jupyter.widget"
#: what a page reads of a model besides its state, and where in the state that is
_CLASS = {name: f"_{name}" for name in ("model_name", "model_module", "model_module_version")}
#: bytes of a model without any state
_LEAST = 256

#: a path in a state, and the buffer that belongs there
_Buffer = tuple[list[Any], bytes]


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
            oldest = self._cells.pop(next(iter(self._cells)))
            self._drop(oldest, len(oldest.outputs))

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


@dataclass(slots=True)
class _Model:
    """A widget's state, as its messages have set it."""

    state: dict[str, Any] = field(default_factory=dict)
    #: by the name of the value that has them
    buffers: dict[str, list[_Buffer]] = field(default_factory=dict)
    #: bytes of each value with its buffers
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Its bytes."""
        return _LEAST + sum(self.sizes.values())

    def update(self, data: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        """Set new values."""
        state, paths = data.get("state"), data.get("buffer_paths")
        if not isinstance(state, dict):
            return
        placed = [
            (path, buffer)
            for path, buffer in zip(paths if isinstance(paths, list) else (), buffers, strict=False)
            if isinstance(path, list) and path
        ]
        self.state |= state
        for name, value in state.items():
            self.buffers[name] = [(path, buffer) for path, buffer in placed if path[0] == name]
            self.sizes[name] = len(msgspec.json.encode(value)) + sum(len(buffer) for _, buffer in self.buffers[name])

    def placed_buffers(self) -> list[_Buffer]:
        """Return its buffers, with their paths."""
        return [placed for several in self.buffers.values() for placed in several]


class CommRecords:
    """The open widgets of one kernel.

    Parameters
    ----------
    max_bytes
        Of all their states together; beyond it, nothing is answered before another process serves the kernel.
    """

    def __init__(self, *, max_bytes: int = 16 * 1024**2) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        #: by id
        self._models: dict[str, _Model] = {}
        #: message session of the process whose widgets are all known, and of the one that ran a cell last
        self._known: str | None = None
        self._present: str | None = None

    def take(self, header: Mapping[str, Any], content: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        """Take in a message that the kernel published.

        Parameters
        ----------
        header, content, buffers
            As in Jupyter's messaging protocol.
        """
        kind, process = str(header.get("msg_type")), str(header.get("session"))
        number = content.get("execution_count")
        if kind == "execute_input" and number:  # 0: a cell that was answered outside the kernel
            self._present = process
            if number == 1 and process != self._known:
                self._begin(process)
        elif process == self._known:
            self._change(kind, content, buffers)

    def take_from_page(self, message: Sequence[bytes]) -> None:
        """Take in what a page tells a widget, which the kernel does not publish."""
        header, content = wire.read_object(message[0]), wire.read_object(message[3])
        if header.get("msg_type") != "comm_open":
            self._change(str(header.get("msg_type")), content, message[4:])

    def answer(self, request: Sequence[bytes]) -> list[tuple[str, list[bytes]]]:
        """Return messages that answer a page's, with their channels; none if it is not about widgets that are known.

        Parameters
        ----------
        request
            Its parts, from its header on.
        """
        if self._known is None or self._known != self._present:
            return []
        header, content = wire.read_object(request[0]), wire.read_object(request[3])
        kind = header.get("msg_type")
        if kind == "comm_info_request" and content.get("target_name") == _TARGET:
            comms = {comm: {"target_name": _TARGET} for comm in self._models}
            reply = self._message("comm_info_reply", {"status": "ok", "comms": comms}, request[0])
            # A page waits for both.
            return [("shell", reply), ("iopub", self._message("status", {"execution_state": "idle"}, request[0]))]
        found = self._states(content) if kind == "comm_msg" else None
        if found is None:
            return []
        data, placed = found
        data["buffer_paths"] = [path for path, _ in placed]
        message = self._message("comm_msg", {"comm_id": content.get("comm_id"), "data": data}, request[0])
        return [("iopub", [*message, *(buffer for _, buffer in placed)])]

    def _states(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[_Buffer]] | None:
        """Return the states that a page asks for, of one widget or, on a comm of its own, of all."""
        comm, data = str(content.get("comm_id")), content.get("data")
        method = data.get("method") if isinstance(data, dict) else None
        model = self._models.get(comm)
        if method == "request_state" and model is not None:
            return {"method": "update", "state": model.state}, model.placed_buffers()
        if method != "request_states" or model is not None:
            return None
        states = {
            name: {key: model.state.get(place) for key, place in _CLASS.items()} | {"state": model.state}
            for name, model in self._models.items()
        }
        placed = [
            ([name, "state", *path], buffer)
            for name, model in self._models.items()
            for path, buffer in model.placed_buffers()
        ]
        return {"method": "update_states", "states": states}, placed

    def _message(self, kind: str, content: dict[str, Any], parent: bytes) -> list[bytes]:
        # JupyterLab drops messages about comms that are not from the process whose message it has read last.
        return wire.new_message(kind, content, session=str(self._known), parent=parent)

    def _change(self, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        comm, data = str(content.get("comm_id")), content.get("data")
        if kind == "comm_close" and comm in self._models:
            self._num_bytes -= self._models.pop(comm).size
        elif kind == "comm_open" and content.get("target_name") == _TARGET:
            self._num_bytes += _LEAST
            self._models[comm] = _Model()
        elif kind != "comm_msg":
            return
        model = self._models.get(comm)
        if model is not None and isinstance(data, dict) and data.get("method", "update") in ("update", "echo_update"):
            before = model.size
            model.update(data, buffers)
            self._num_bytes += model.size - before
        if self._num_bytes > self._max_bytes:
            self._begin(None)

    def _begin(self, known: str | None) -> None:
        self._known, self._models, self._num_bytes = known, {}, 0
