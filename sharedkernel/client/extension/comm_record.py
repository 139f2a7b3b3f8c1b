"""The open widgets of one kernel, so that a page that comes while a cell runs can have them.

A kernel answers about its widgets between cells only, so a page that is reloaded during a run of hours would show none
of its bars. They are opened, updated and closed by what the kernel publishes, and that is enough to answer. Only for
the process whose first cell was heard: another one may have widgets of which nothing is known here. Pure:
`recorder.py` listens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sharedkernel.jupyter import wire

_TARGET = "jupyter.widget"
#: what a page reads of a model besides its state, and where in the state that is
_CLASS = {name: f"_{name}" for name in ("model_name", "model_module", "model_module_version")}
#: bytes of a model without any state
_LEAST = 256

#: a path in a state, and the buffer that belongs there
_Buffer = tuple[list[Any], bytes]


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
