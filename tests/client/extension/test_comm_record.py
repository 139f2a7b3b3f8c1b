"""The widgets of a cell that runs, for a page that comes meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.client.extension.records import CommRecords
from sharedkernel.jupyter import wire
from tests.client.extension.kernel_page import KernelPage, Message
from tests.client.extension.server import JupyterServer
from tests.client.extension.test_recorder import CELLS

VIEW = "application/vnd.jupyter.widget-view+json"
#: three bars that are closed, and one that is open, until a file is there
BARS = """
import pathlib, time
from tqdm.auto import tqdm
for epoch in tqdm(range(100), desc="epochs", mininterval=0):
    for step in tqdm(range(2), desc=f"steps of {{epoch}}", leave=False):
        pass
    if epoch == 2:
        print("three closed", flush=True)
        while not pathlib.Path({enough!r}).exists():
            time.sleep(0.02)
        break
"""


def views(server: JupyterServer, kernel: str) -> list[str]:
    """Return the models that the outputs show which a page would get."""
    (cell,) = server.ask("GET", CELLS.format(kernel)).body["cells"]
    shown = [output.get("data", {}).get(VIEW) for output in cell["outputs"]]
    return [view["model_id"] for view in shown if view]


def ask_state(page: KernelPage, comm: str) -> dict[str, Any]:
    """Ask for a widget's state as a page does that found its comm."""
    request = page.send("shell", "comm_msg", {"comm_id": comm, "data": {"method": "request_state"}})
    return dict(page.wait(about(request, "comm_msg"))["content"]["data"]["state"])


def about(request: str, kind: str) -> Any:
    return lambda message: message["about"] == request and message["type"] == kind


def test_a_page_that_comes_meanwhile_gets_the_open_widgets(ada: JupyterServer, tmp_path: Path) -> None:
    """No output shows a bar that is closed; the open one's state comes while the cell runs, however it is asked."""
    kernel = str(ada.ask("POST", "/api/kernels", {"name": "shared-gpu"}).body["id"])
    with KernelPage(ada, kernel) as first, KernelPage(ada, kernel) as page:
        cell = first.execute(BARS.format(enough=str(tmp_path / "enough")))
        first.wait_for_text("three closed")
        # The server hears of what was closed on a connection of its own.
        while len(found_views := views(ada, kernel)) > 1:
            pass
        (shown,) = found_views

        asked = page.send("shell", "comm_info_request", {"target_name": "jupyter.widget"})
        comms = page.wait(about(asked, "comm_info_reply"))["content"]["comms"]
        assert comms[shown] == {"target_name": "jupyter.widget"}
        page.wait(lambda message: about(asked, "status")(message) and message["content"]["execution_state"] == "idle")
        box = ask_state(page, shown)
        assert box["_model_name"] == "HBoxModel"
        label, bar, _ = (child.removeprefix("IPY_MODEL_") for child in box["children"])
        while (state := ask_state(page, bar))["value"] < 2:
            pass
        assert state["max"] == 100
        assert ask_state(page, label)["value"].startswith("epochs:")

        control = {"comm_id": "control", "target_name": "jupyter.widget.control", "data": {}}
        page.send("shell", "comm_open", control)
        asked = page.send("shell", "comm_msg", {"comm_id": "control", "data": {"method": "request_states"}})
        found = page.wait(about(asked, "comm_msg"))["content"]["data"]
        assert found["states"][shown]["state"] == box
        assert found["states"][shown]["model_name"] == "HBoxModel"
        assert found["states"].keys() == comms.keys()
        assert page.messages[-1]["header"]["session"] == first.messages[-1]["header"]["session"]

        (tmp_path / "enough").touch()
        first.finish(cell)
        asked = page.send("shell", "comm_info_request", {"target_name": "jupyter.widget"})
        assert shown in page.wait(about(asked, "comm_info_reply"))["content"]["comms"]


# --- what is kept -----------------------------------------------------------------------------------------------------


def told(kind: str, content: Message, *buffers: bytes, session: str = "kernel") -> list[bytes]:
    return [*wire.new_message(kind, content, session=session), *buffers]


def take(records: CommRecords, kind: str, content: Message, *buffers: bytes, session: str = "kernel") -> None:
    records.take({"msg_type": kind, "session": session}, content, buffers)


def open_model(records: CommRecords, comm: str, data: Message, *buffers: bytes) -> None:
    take(records, "comm_open", {"comm_id": comm, "target_name": "jupyter.widget", "data": data}, *buffers)


def state_of(records: CommRecords, comm: str) -> Any:
    """Return a model's state, and its buffers with their paths; None if there is no answer."""
    for _, parts in records.answer(told("comm_msg", {"comm_id": comm, "data": {"method": "request_state"}})):
        data = json.loads(parts[3])["data"]
        return data["state"], list(zip(data["buffer_paths"], parts[4:], strict=True))
    return None


@pytest.fixture
def records() -> CommRecords:
    """Return those of a kernel whose first cell has begun."""
    records = CommRecords(max_bytes=10_000)
    take(records, "execute_input", {"execution_count": 1})
    return records


def test_a_state_is_what_all_messages_have_set(records: CommRecords) -> None:
    """With buffers, which go with the value that they are part of; those of pages count, too."""
    open_model(records, "a", {"state": {"value": 1, "images": [{}]}, "buffer_paths": [["images", 0, "png"]]}, b"one")
    update = {"method": "update", "state": {"value": 2}, "buffer_paths": []}
    take(records, "comm_msg", {"comm_id": "a", "data": update})
    assert state_of(records, "a") == ({"value": 2, "images": [{}]}, [(["images", 0, "png"], b"one")])
    records.take_from_page(told("comm_msg", {"comm_id": "a", "data": {"method": "update", "state": {"value": 3}}}))
    changed = {"method": "update", "state": {"images": [{}, {}]}, "buffer_paths": [["images", 1, "png"]]}
    take(records, "comm_msg", {"comm_id": "a", "data": changed}, b"two")
    assert state_of(records, "a") == ({"value": 3, "images": [{}, {}]}, [(["images", 1, "png"], b"two")])
    take(records, "comm_close", {"comm_id": "a"})
    assert state_of(records, "a") is None


def test_a_process_whose_beginning_was_not_heard_answers_itself(records: CommRecords) -> None:
    """As one that takes the place of another; what is known of that is not its own."""
    open_model(records, "a", {"state": {"value": 1}})
    take(records, "execute_input", {"execution_count": 0}, session="not the kernel")
    assert state_of(records, "a") is not None
    take(records, "execute_input", {"execution_count": 7}, session="an earlier one")
    assert state_of(records, "a") is None
    take(records, "execute_input", {"execution_count": 1}, session="a new one")
    assert state_of(records, "a") is None
    assert json.loads(records.answer(told("comm_info_request", {"target_name": "jupyter.widget"}))[0][1][3]) == {
        "status": "ok",
        "comms": {},
    }


def test_beyond_the_limit_nothing_is_answered(records: CommRecords) -> None:
    """Not a part, either: a page takes what is missing for closed. A value that is set anew counts once."""
    for number in range(100):
        open_model(records, "a", {"state": {"value": f"{number:5000}"}})
        take(records, "comm_close", {"comm_id": "a"})
    open_model(records, "a", {"state": {"value": ""}})
    for number in range(100):
        take(records, "comm_msg", {"comm_id": "a", "data": {"method": "update", "state": {"value": f"{number:5000}"}}})
    assert state_of(records, "a") is not None
    open_model(records, "b", {"state": {"value": "x" * 6000}})
    assert state_of(records, "a") is None
    assert records.answer(told("comm_info_request", {"target_name": "jupyter.widget"})) == []


def test_odd_messages_do_no_harm(records: CommRecords) -> None:
    """User code may send anything; a page may name the subshell where the widget was used, which is behind the cell."""
    for data in (None, 7, {"state": 7}, *({"state": {}, "buffer_paths": odd} for odd in (7, [7, []]))):
        open_model(records, "a", data, b"1", b"2")
        take(records, "comm_msg", {"comm_id": "a", "data": data})
        assert state_of(records, "a") is not None
    request = told("comm_msg", {"comm_id": "a", "data": {"method": "request_state"}})
    request[0] = json.dumps(json.loads(request[0]) | {"subshell_id": "one"}).encode()
    assert records.answer(request)
