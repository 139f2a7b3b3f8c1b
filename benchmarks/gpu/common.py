"""What the GPU benchmarks share: the device, models as cells, notebooks on it, and the result file.

Each script measures one thing with real notebooks: sessions of a local stack on the GPU, and, as the peer, kernels of a
stock Jupyter server on the same GPU. Where there is no GPU a script says so in one sentence and exits with 2.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.stack.client import Notebook, Route, open_notebook
from benchmarks.stack.results import Result
from benchmarks.stack.servers import StockServer, gateway_route
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.discovery import check_torch, named_device
from sharedkernel.local_stack import LocalStack
from sharedkernel.status.document import StatusDocument
from sharedkernel.system.nvml import Gpu

GIB = 1 << 30

#: notebooks that are opened side by side: each imports torch
_AT_A_TIME = 16

#: defines models and trainings on the GPU in a notebook, once `small` is there; it does not know that it shares
PREPARE = """
import gc, hashlib, json, threading, time
import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )
        same = stride == 1 and inputs == 4 * width
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))

side, width, vocabulary = (32, 8, 300) if small else (224, 64, 30000)

def resnet50():
    layers, inputs = [nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
    for factor, count, stride in ((1, 3, 1), (2, 4, 2), (4, 6, 2), (8, 3, 2)):
        for number in range(1 if small else count):
            layers.append(Bottleneck(inputs, factor * width, stride if number == 0 else 1))
            inputs = 4 * factor * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))

class Tokens(nn.Module):
    def __init__(self, layers, width, heads, causal):
        super().__init__()
        layers, width, heads = (2, 64, 2) if small else (layers, width, heads)
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head, self.causal = nn.Linear(width, vocabulary), causal

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device) if self.causal else None
        return self.head(self.body(self.embedding(tokens), mask=mask, is_causal=self.causal)[:, 0])

models = {
    "mlp": (lambda: nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1000)), lambda n: torch.randn(n, 512)),
    "resnet50": (resnet50, lambda n: torch.randn(n, 3, side, side)),
    "bert": (lambda: Tokens(12, 768, 12, False), lambda n: torch.randint(vocabulary, (n, 128))),
    "gpt": (lambda: Tokens(6, 512, 8, True), lambda n: torch.randint(vocabulary, (n, 256))),
}

class Training:
    def __init__(self, name, rows):
        make, inputs = models[name]
        rows = min(rows, 4) if small else rows
        self.model = make().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.inputs, self.labels = inputs(rows).to(device), torch.randint(min(1000, vocabulary), (rows,)).to(device)

    def iterate(self):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.inputs), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss

def rate(training, seconds):
    for _ in range(5):
        training.iterate()
    torch.cuda.synchronize()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        training.iterate()
        count += 1
        if count % 10 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return count / (time.perf_counter() - begun)
"""


class Bench:
    """One script's run.

    Parameters
    ----------
    gpu
        The device.
    arguments
        Of the command line.
    """

    def __init__(self, name: str, gpu: Gpu, arguments: argparse.Namespace) -> None:
        self.gpu = gpu
        self.quick: bool = arguments.quick
        #: the device is the tests' software GPU, which computes slowly and has little memory: models are small there
        self.software: bool = arguments.software
        self.threads: int = arguments.threads
        self.device: str = arguments.device
        self._trust: Path | None = arguments.trust
        self._out: Path | None = arguments.json
        self._rows: list[Result] = []
        #: metrics that are right or wrong, whatever the device's times
        self._exact: set[str] = set()
        self._skipped: dict[str, str] = {}
        #: what each stack said of itself: how its sessions had their memory
        self._stacks: list[dict[str, Any]] = []
        self._head = {
            "name": name,
            "device": gpu.facts.name,
            "driver": gpu.facts.driver_version,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }

    @property
    def are_met(self) -> bool:
        """Whether every target was met; on the software GPU, whose times and sizes say nothing, every exact one."""
        return all(row.met for row in self._rows if not self.software or row.metric in self._exact)

    def add(self, *rows: Result, exact: bool = False) -> None:
        """Note results, and write them at once: what comes later may be cut off.

        Parameters
        ----------
        rows
            What was measured.
        exact
            Whether they are right or wrong on any device.
        """
        self._rows += rows
        if exact:
            self._exact |= {row.metric for row in rows}
        self._write()

    def skip(self, metric: str, why: str) -> None:
        """Note what is not measured here, and why."""
        self._skipped[metric] = why
        self._write()

    def _write(self) -> None:
        if self._out is not None:
            self._out.write_text(self.text() + "\n")

    def text(self) -> str:
        """Return all that is known so far, as JSON."""
        rows = [row.as_dict() for row in self._rows]
        return json.dumps({**self._head, "stacks": self._stacks, "skipped": self._skipped, "results": rows}, indent=2)

    def seconds(self, usual: float) -> float:
        """Return how long to measure where *usual* seconds are usual."""
        return usual / 4 if self.quick else usual

    def say(self, what: str) -> None:
        """Tell who waits what is being done."""
        print(f"  {what}", file=sys.stderr)  # noqa: T201

    def used_bytes(self) -> int:
        """Return the device memory in use, by whomever."""
        return self.gpu.sample().used_bytes

    @contextmanager
    def stack(
        self, *users: str, arguments: Sequence[str] = (), capacity: str | None = None, **options: Any
    ) -> Iterator[LocalStack]:
        """Serve the GPU to *users* by a stack of this run's own; its logs stay if it comes to nothing."""
        trust = () if self._trust is None else ("--trust", str(self._trust))
        with LocalStack(
            users=users or ("ada",),
            devices=[self.device],
            capacity=capacity,
            executor_arguments=[*trust, *arguments],
            **options,
        ) as stack:
            try:
                yield stack
            except BaseException:
                self._keep_logs(stack)
                raise
            finally:
                with contextlib.suppress(SharedKernelError):
                    self._stacks.append(_state_of(stack.status()))
                    self._write()

    async def open(self, contexts: AsyncExitStack, routes: Sequence[Route]) -> list[Notebook]:
        """Open a notebook on each route, some at a time, and define the models in it."""
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def open_one(route: Route) -> Notebook:
            async with turns:
                notebook = await contexts.enter_async_context(open_notebook(route))
                await notebook.run(f"small = {self.software}\n{PREPARE}")
                return notebook

        return list(await asyncio.gather(*map(open_one, routes)))

    def _keep_logs(self, stack: LocalStack) -> None:
        if self._out is not None:
            kept = self._out.with_suffix(".logs")
            for log in stack.directory.rglob("*.log"):
                kept.mkdir(exist_ok=True)
                shutil.copyfile(log, kept / log.name)


def _state_of(status: StatusDocument) -> dict[str, Any]:
    """Return how the sessions of a stack had their memory: in modes other than *shared* no figure is about lanes."""
    device = json.loads(msgspec.json.encode(status.device))
    names = ("memory_mode", "self_test", "nvml", "nvml_note", "lanes_shared", "lanes_shared_reason")
    notes = {session.user: session.lane_note for session in status.sessions if session.lane_note}
    return {**{name: device[name] for name in names if device.get(name) is not None}, "lane_notes": notes}


def sessions(stack: LocalStack) -> list[Route]:
    """Return the way to a session of each of the stack's users."""
    return [gateway_route(stack, user) for user in stack.users]


def processes(server: StockServer, count: int) -> list[Route]:
    """Return the way to *count* kernels that share the GPU by the driver alone."""
    return [server.stock] * count


def main(name: str, measure: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    """Run one benchmark and write its result.

    Parameters
    ----------
    name
        Of the benchmark.
    measure
        Does it.

    Raises
    ------
    SystemExit
        With 0 when every target was met, 1 when one was not, 2 when it could not be run.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the result goes; default: standard output")
    parser.add_argument("--device", default="cuda:0", help="the GPU (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="measure for a quarter of the time")
    parser.add_argument("--software", action="store_true", help="small models, for the software GPU of the tests")
    parser.add_argument("--trust", type=Path, metavar="FILE", help="of executors: steps of the self-test that passed")
    parser.add_argument("--threads", type=int, default=0, help="threads that each training of the soak has besides")
    arguments = parser.parse_args()
    try:
        check_torch()
        bench = Bench(name, Gpu(named_device(arguments.device, os.environ)), arguments)
        asyncio.run(measure(bench))
    except SharedKernelError as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    if arguments.json is None:
        print(bench.text())  # noqa: T201
    sys.exit(0 if bench.are_met else 1)
