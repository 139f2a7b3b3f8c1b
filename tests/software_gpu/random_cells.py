"""Random cells for notebooks on a GPU. Each checks what its notebook keeps, and prints all that was ever wrong there.

A cell is a text of Python; what is random in it was drawn before, so that a seed gives the same cells again. Tensors
hold known numbers, and trainings have a twin on the processor that they must agree with.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

MIB = 1 << 20

#: what the first cell of each notebook defines
PRELUDE = """
import gc, json, math, random, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
#: sentences about what was wrong; kept tensors by name, with their number; pools, threads and trainings
wrong, kept, pools, workers, trainings = [], {}, [], [], {}

def numbers(number, count):
    return torch.arange(count, device="cuda") + number

def is_right(number, tensor):
    count = tensor.numel()
    return int(tensor.sum()) == count * (count - 1) // 2 + number * count

def keep(name, number, count):
    kept[name] = number, numbers(number, count)

def check(part=1.0, seed=0):
    drawn = random.Random(seed)
    for name, (number, tensor) in list(kept.items()):
        if drawn.random() < part and not is_right(number, tensor):
            wrong.append(f"{name} of {tensor.numel()} numbers from {number}")

def drop(part, seed, in_cycles):
    drawn = random.Random(seed)
    for name in [name for name in kept if drawn.random() < part]:
        tensors = [kept.pop(name)]
        if in_cycles:
            tensors.append(tensors)  # only the garbage collector frees it

class Training:
    def __init__(self, seed, device, width, batch):
        torch.manual_seed(seed)
        layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)
        self.model = nn.Sequential(*layers).to(device)
        kinds = torch.optim.Adam, torch.optim.SGD
        self.optimizer = kinds[seed % 2](self.model.parameters(), lr=1e-3)
        self.inputs, self.labels = torch.randn(batch, 64).to(device), torch.randint(10, (batch,)).to(device)

    def step(self):
        self.optimizer.zero_grad()
        outputs = self.model(self.inputs)
        loss = nn.functional.cross_entropy(outputs, self.labels)
        seen, before = outputs.detach(), outputs.detach().cpu()
        loss.backward()
        self.optimizer.step()
        if not torch.equal(seen.cpu(), before):
            wrong.append("an activation changed")
        return loss.item()

def train(seed, steps, width, batch):
    # what is interrupted in the middle of a step is not put back
    mine, twin = trainings.pop(seed, None) or [Training(seed, device, width, batch) for device in ("cuda", "cpu")]
    while steps:
        loss, expected = mine.step(), twin.step()
        if not math.isclose(loss, expected, rel_tol=1e-4):
            wrong.append(f"training {seed} has the loss {loss}, and its twin {expected}")
        steps -= 1
    trainings[seed] = mine, twin

def train_forever(seed, width, batch):
    training = Training(seed, "cuda", width, batch)
    while True:
        training.step()

def allocate_forever(seed, most):
    drawn, held = random.Random(seed), []
    while True:
        number, count = drawn.randrange(1000), drawn.randrange(1, most)
        held.append((number, numbers(number, count)))
        if len(held) > 4:
            number, tensor = held.pop(drawn.randrange(4))
            if not is_right(number, tensor):
                wrong.append("a tensor that was allocated for a while")

def use_pool(name, number, count, is_kept):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = numbers(number, count)
    if not is_right(number, tensor):
        wrong.append("a tensor of a pool")
    if is_kept:
        kept[name] = number, tensor
        pools.append(pool)
    elif pools:
        pools.pop()

def use_streams(number, count, rounds):
    side = torch.cuda.Stream()
    source = (torch.arange(count) + number).pin_memory()
    for _ in range(rounds):
        with torch.cuda.stream(side):
            fetched = source.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        fetched.record_stream(torch.cuda.current_stream())
        if not is_right(number, fetched):
            wrong.append("a tensor that a side stream fetched")
        scratch = torch.full((count,), -1, device="cuda")
        scratch.record_stream(side)
        del fetched, scratch

def use_threads(number, count, size):
    with ThreadPoolExecutor(size) as threads:
        for result in threads.map(lambda each: is_right(number + each, numbers(number + each, count)), range(2 * size)):
            if not result:
                wrong.append("a tensor of a thread")

def work_for(seconds, number, count):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if not is_right(number, numbers(number, count)):
                wrong.append("a tensor of a thread in the background")
        except torch.OutOfMemoryError:
            pass
        time.sleep(0.01)

def work_in_background(*arguments):
    workers[:] = [worker for worker in workers if worker.is_alive()]
    workers.append(threading.Thread(target=work_for, args=arguments, daemon=True))
    workers[-1].start()

def use_graph(number, count):
    # what torch's operations do in a graph, the software GPU does not replay: that nothing breaks is what counts
    source, target = torch.zeros(count, device="cuda"), torch.zeros(count, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        target.copy_(source)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        target.copy_(source)
    for each in range(3):
        source.fill_(number + each)
        graph.replay()

def load(number, batches):
    data = TensorDataset(torch.arange(batches * 64) + number)
    total = 0
    for (batch,) in DataLoader(data, batch_size=64, num_workers=1, pin_memory=True):
        total += int(batch.cuda(non_blocking=True).sum())
    count = batches * 64
    if total != count * (count - 1) // 2 + number * count:
        wrong.append("what a data loader brought")

def want(size):
    large = torch.ones(size, dtype=torch.uint8, device="cuda")
    if int(large[-1]) != 1 or int(large[size // 2]) != 1:
        wrong.append("a large tensor")

torch.ones(1, device="cuda").item()
"""
#: writes where nothing is, by a kernel that no compiler is needed for
_FAULT = """
from cuda.bindings import driver
code = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.visible .entry wild() { .reg .u64 %a; .reg .u32 %b; "
code += b"mov.u64 %a, 8; mov.u32 %b, 1; st.global.u32 [%a], %b; ret; }\\0"
error, module = driver.cuModuleLoadData(code)
error, wild = driver.cuModuleGetFunction(module, b"wild")
driver.cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
torch.cuda.synchronize()
"""


class Ending(Enum):
    """How a cell has to end."""

    #: by itself, without an error or for want of memory
    WELL = auto()
    #: for want of memory
    TOO_LARGE = auto()
    #: by an interrupt, some time after it began
    INTERRUPT = auto()
    #: with its session's process, which is killed
    KILL = auto()
    #: with its session's process, which ends itself
    CRASH = auto()
    #: by a fault on the device, after which its session can only be ended
    FAULT = auto()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell."""

    #: for the report
    kind: str
    code: str
    ending: Ending = Ending.WELL
    #: seconds until it is interrupted or killed
    after: float = 0.0


#: how often each kind comes, compared with the others
_KINDS = {
    "keep": 8, "keep small": 4, "drop": 8, "empty cache": 3, "train": 12, "pool": 4, "streams": 4, "threads": 2,
    "background": 1, "graph": 2, "loader": 1, "large": 3, "impossible": 1, "interrupt": 5, "kill": 1, "crash": 1,
    "fault": 1,
}  # fmt: skip
#: bytes of a number
_NUMBER = 8


class Cells:
    """Cells of one notebook.

    Parameters
    ----------
    drawn
        Draws what is random.
    capacity
        Of the device, in bytes.
    tenants
        How many notebooks share it.
    """

    def __init__(self, drawn: random.Random, capacity: int, tenants: int) -> None:
        self._random = drawn
        self._capacity = capacity
        #: what one tensor that stays may have
        self._most = capacity // tenants // 4
        self._count = 0

    def next(self) -> Cell:
        """Return another cell."""
        self._count += 1
        (kind,) = self._random.choices(list(_KINDS), list(_KINDS.values()))
        name = f"_{kind.replace(' ', '_')}"
        make: Callable[[], Cell] = getattr(self, name)
        cell = make()
        checks = f"check({self._random.choice((0.2, 0.5, 1.0))}, {self._count})\nprint(json.dumps(wrong))\n"
        return Cell(kind=kind, code=f"{cell.code}\n{checks}", ending=cell.ending, after=cell.after)

    def _numbers_in(self, most: int) -> int:
        """Return how many numbers a tensor of at most so many bytes has: small ones are as frequent as large ones."""
        return max(1, int(2 ** self._random.uniform(5, most.bit_length())) // _NUMBER)

    def _number(self) -> int:
        return self._random.randrange(1000)

    def _shape(self) -> str:
        return f"{self._random.choice((64, 256, 1024))}, {self._random.choice((16, 64, 512))}"

    def _keep(self) -> Cell:
        lines = []
        for each in range(self._random.randint(1, 4)):
            lines.append(f"keep('{self._count}.{each}', {self._number()}, {self._numbers_in(self._most)})")
        return Cell(kind="", code="\n".join(lines))

    def _keep_small(self) -> Cell:
        counts = [self._numbers_in(64 << 10) for _ in range(self._random.randint(20, 200))]
        code = f"for each, count in enumerate({counts}):\n    keep(f'{self._count}.{{each}}', {self._number()}, count)"
        return Cell(kind="", code=code)

    def _drop(self) -> Cell:
        part, in_cycles = self._random.choice((0.3, 0.6, 1.0)), self._random.random() < 0.3
        return Cell(kind="", code=f"drop({part}, {self._count}, {in_cycles})")

    def _empty_cache(self) -> Cell:
        return Cell(kind="", code="gc.collect()\ntorch.cuda.empty_cache()")

    def _train(self) -> Cell:
        seed, steps = self._random.randrange(3), self._random.randint(1, 40)
        return Cell(kind="", code=f"train({seed}, {steps}, {self._shape()})")

    def _pool(self) -> Cell:
        count = self._numbers_in(self._most // 2)
        is_kept = self._random.random() < 0.5
        return Cell(kind="", code=f"use_pool('{self._count}', {self._number()}, {count}, {is_kept})")

    def _streams(self) -> Cell:
        count, rounds = self._numbers_in(4 * MIB), self._random.randint(1, 20)
        return Cell(kind="", code=f"use_streams({self._number()}, {count}, {rounds})")

    def _threads(self) -> Cell:
        count, size = self._numbers_in(2 * MIB), self._random.randint(1, 4)
        return Cell(kind="", code=f"use_threads({self._number()}, {count}, {size})")

    def _background(self) -> Cell:
        seconds, count = self._random.uniform(0.5, 5.0), self._numbers_in(2 * MIB)
        return Cell(kind="", code=f"work_in_background({seconds}, {self._number()}, {count})")

    def _graph(self) -> Cell:
        return Cell(kind="", code=f"use_graph({self._number()}, {self._numbers_in(MIB)})")

    def _loader(self) -> Cell:
        return Cell(kind="", code=f"load({self._number()}, {self._random.randint(1, 20)})")

    def _large(self) -> Cell:
        return Cell(kind="", code=f"want({int(self._capacity * self._random.uniform(0.1, 0.6))})")

    def _impossible(self) -> Cell:
        return Cell(kind="", code=f"want({2 * self._capacity})", ending=Ending.TOO_LARGE)

    def _endless(self) -> str:
        if self._random.random() < 0.5:
            return f"train_forever({self._number()}, {self._shape()})"
        return f"allocate_forever({self._number()}, {self._most // 4 // _NUMBER})"

    def _interrupt(self) -> Cell:
        after = self._random.uniform(0.1, 4.0)
        return Cell(kind="", code=self._endless(), ending=Ending.INTERRUPT, after=after)

    def _kill(self) -> Cell:
        return Cell(kind="", code=self._endless(), ending=Ending.KILL, after=self._random.uniform(0.1, 4.0))

    def _crash(self) -> Cell:
        return Cell(kind="", code="keep('last', 1, 1000)\nimport os\nos.abort()", ending=Ending.CRASH)

    def _fault(self) -> Cell:
        seed = self._random.randrange(3)
        return Cell(kind="", code=f"train({seed}, 3, {self._shape()})\n{_FAULT}", ending=Ending.FAULT)
