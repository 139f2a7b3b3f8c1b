"""The needs of plain mode: public functions of torch, and nothing of ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import torch

from sharedkernel.selftest.training import Training, check_losses
from sharedkernel.system.processes import fork_child

MIB = 1 << 20
_PASSES = 5
_SEED = 7


def training() -> None:
    """Compare a training with the processor's."""
    mine = Training("cuda", _SEED)
    check_losses([mine.step() for _ in range(_PASSES)], _SEED)


def memory_limit() -> None:
    """Go beyond a limit, and give memory back.

    Raises
    ------
    RuntimeError
        When the limit does not hold, or the memory does not come back.
    """
    total = torch.cuda.get_device_properties(0).total_memory
    kept = torch.arange(MIB, dtype=torch.int32, device="cuda")
    torch.cuda.set_per_process_memory_fraction(64 * MIB / total, 0)
    try:
        torch.empty(96 * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    else:
        raise RuntimeError("torch's allocator did not keep to its limit")
    block = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    if torch.cuda.memory_allocated() < 36 * MIB:
        raise RuntimeError("torch does not count its tensors")
    del block
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if torch.cuda.memory_reserved() > 32 * MIB:
        raise RuntimeError("torch keeps memory that was to be given back")
    if not torch.equal(kept.cpu(), torch.arange(MIB, dtype=torch.int32)):
        raise RuntimeError("a tensor changed while memory was given back")


def two_processes() -> None:
    """Let two processes train by turns."""
    with contextlib.ExitStack() as stack:
        trainers = [stack.enter_context(_trainer(seed)) for seed in (_SEED, _SEED + 1)]
        losses: list[list[float]] = [[], []]
        for _ in range(_PASSES):
            for trainer, own in zip(trainers, losses, strict=True):
                own.append(trainer())
    for number, own in enumerate(losses):
        check_losses(own, _SEED + number)


@contextlib.contextmanager
def _trainer(seed: int) -> Iterator[Callable[[], float]]:
    """Yield what has a process train for one pass, over two pipes, and returns its loss."""
    orders, to = os.pipe()
    back, answers = os.pipe()

    def train() -> None:
        os.close(to)
        os.close(back)
        mine = Training("cuda", seed)
        while os.read(orders, 1):
            loss = mine.step()
            torch.cuda.synchronize()
            os.write(answers, f"{loss!r}".encode())

    def train_once() -> float:
        os.write(to, b"1")
        answer = os.read(back, 100)
        if not answer:
            raise RuntimeError("one of two processes on the device has ended")
        return float(answer)

    pid = fork_child(train)
    os.close(orders)
    os.close(answers)
    try:
        yield train_once
    finally:
        os.close(to)
        os.close(back)
        os.waitpid(pid, 0)
