"""Memory figures and quotas on a GPU, as seen from outside: what notebooks have made, and what torch has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sharedkernel.paths import LOGS_DIRECTORY
from tests.client.relay.support import wait_until
from tests.memory.walk import MIB, OWNERS, USABLE, Walk
from tests.software_gpu.support import trusted

pytestmark = pytest.mark.software_gpu


@pytest.fixture(scope="module")
def walk() -> Iterator[Walk]:
    yield from walk_on_a_gpu(capacity=960 * MIB, quota=400 * MIB)


def walk_on_a_gpu(**sizes: int) -> Iterator[Walk]:
    """Yield a walk whose executor tries nothing out."""
    walk = Walk(device="cuda:0", **sizes)
    walk.stack.executor.arguments += ["--trust", str(trusted())]
    with walk:
        yield walk


def test_one_large_tensor_counts_once_and_goes_at_once(walk: Walk) -> None:
    """However long its making takes, and whether the cell that frees it has a grant."""
    walk.begin(OWNERS[:2])
    walk.request(0, 240 * MIB, keeps=True, way="slow")
    walk.check()
    walk.request(1, 96 * MIB, keeps=True)
    walk.check()
    walk.check_outside()
    walk.run(walk.notebooks[0], "%reset -f")
    walk.notebooks[0].tensors.clear()
    walk.check()


def test_a_quota_is_all_usable(walk: Walk) -> None:
    """By one notebook and by two, each shut down before the next; what was shut down can be had back."""
    for num_notebooks in (1, 2):
        walk.begin(("ada",) * num_notebooks)
        for _ in range(2):
            for number in range(num_notebooks):
                walk.request(number, int(USABLE * walk.quota) // num_notebooks - 16 * MIB, keeps=True)
            walk.check()
            for number in range(num_notebooks):
                walk.shut_down(number)


def test_a_first_cell_grows_without_a_round_trip(walk: Walk) -> None:
    """It may have all that quota and device leave, so it asks for the device once, however much it makes."""
    walk.begin(("ada",))
    (kept,) = walk.notebooks
    walk.run(kept, f"tensors = [make({40 * MIB}) for _ in range(8)]")
    kept.tensors["tensors"] = 8 * 40 * MIB
    walk.check()
    (session,) = {s.id for s in walk.stack.status().sessions}
    log = walk.stack.runtime_directory / LOGS_DIRECTORY / "events.jsonl"

    def events() -> list[dict[str, Any]]:
        lines = map(json.loads, log.read_text().splitlines())
        return [line for line in lines if line.get("session") == session]

    wait_until(lambda: any(line["event"] == "CellClosed" and line["memory"]["persistent"] for line in events()))
    assert [line["growth"] for line in events() if line["event"] == "DeviceWanted"] == [0]
