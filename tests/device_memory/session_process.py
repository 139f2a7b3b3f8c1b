"""A session as a process of its own: torch tensors over mapped memory, units by descriptor.

Run as ``python -m tests.device_memory.session_process DESCRIPTOR NAME TRACE CHECK``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sharedkernel.selftest.wire import RemoteSupplier, layout_of, receive, receive_units, send
from tests.device_memory.pool_model import Block
from tests.device_memory.support import MIB, Replay, Tenant, tensor_at
from tests.device_memory.traces import Allocated, Boundary, Freed, Step


def dump(steps: Sequence[Step]) -> str:
    """Return a trace as text."""
    return json.dumps(
        [
            [step.block, step.size] if isinstance(step, Allocated) else [step.block] if isinstance(step, Freed) else []
            for step in steps
        ]
    )


def load(text: str) -> list[Step]:
    kinds: tuple[Any, ...] = (Boundary, Freed, Allocated)
    return [kinds[len(step)](*step) for step in json.loads(text)]


class TensorTenant(Tenant):
    """Writes and looks at its blocks through torch tensors that are laid over them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tensors: dict[Block, torch.Tensor] = {}

    def _places(self, block: Block) -> torch.Tensor:
        if block not in self._tensors:
            self._tensors[block] = tensor_at(block.address, block.size)
        return self._tensors[block]

    def free(self, block: Block) -> None:
        super().free(block)
        del self._tensors[block]


class Process:
    """Does what the executor says."""

    def __init__(self, connection: socket.socket, name: str, steps: Sequence[Step], check_lanes: bool) -> None:
        self._connection = connection
        self._session = TensorTenant(RemoteSupplier(connection), name, check_lanes=check_lanes)
        self._replay = Replay(self._session, steps, seed=sum(name.encode()))

    def run(self) -> None:
        while True:
            message, _ = receive(self._connection)
            if message["do"] == "end":
                self._session.memory.close()
                return
            answer = getattr(self, message.pop("do"))(**message)
            self._session.check_all()
            send(self._connection, {"done": answer})

    def set_lane(self, lane: int, version: int, units: list[list[int]], count: int) -> None:
        self._session.memory.set_lane(layout_of(lane, version, units), receive_units(self._connection, count))

    def take_turn(self, must_scrub: bool, mark: int, foreign_marks: list[int]) -> dict[str, int]:
        memory = self._session.memory
        memory.begin_turn(must_scrub=must_scrub)
        memory.begin_iteration()
        # what torch.empty shows: no other user's mark
        blocks = [self._session.torch.malloc(size) for size in (*[MIB] * 6, 30 * MIB)]
        foreign = 0
        for block in blocks:
            found = tensor_at(block.address, block.size)
            foreign += sum(int((found == each).sum()) for each in foreign_marks)
            found.fill_(mark)
            self._session.torch.free(block)
        assert self._replay.iterate()
        result = memory.hand_over()
        self._session.check_nothing_lives_in_lane()
        self._session.arena.validate()
        return {"pages": result.num_pages, "foreign": foreign, "private": self._session.arena.private_bytes}

    def hold(self, must_scrub: bool) -> None:
        self._session.memory.begin_turn(must_scrub=must_scrub)
        self._session.memory.begin_iteration()
        self._session.allocate(12 * MIB, 99)

    def away_and_back(self) -> int:
        memory = self._session.memory
        freed = memory.offload()
        memory.restore(RemoteSupplier(self._connection).private_units(memory.sizes_away(), mid_iteration=False))
        return freed

    def descriptors(self) -> dict[str, int]:
        listed = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True
        )
        mine = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)]
        return {
            "inherited": listed.stdout.count("memfd:"),
            "open": sum("memfd:" in target for target in mine),
            "handles": sum(slot.state == "private" for slot in self._session.arena.slots())
            + len(self._session.memory.lane_units),
        }


def _is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def main(descriptor: str, name: str, trace: str, check_lanes: str) -> None:
    torch.set_num_threads(1)
    with socket.socket(fileno=int(descriptor)) as connection:
        process = Process(connection, name, load(Path(trace).read_text()), check_lanes == "check")
        send(connection, {"done": None})
        process.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
