"""What a notebook costs that has used the GPU and idles, and the time to its first result, against a stock kernel."""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from common import Bench, main, processes, sessions

from benchmarks.stack.client import Route, open_notebook
from benchmarks.stack.results import Result, Target, brief
from benchmarks.stack.servers import StockServer
from sharedkernel.units import format_bytes

_FIRST = "import torch\nprint(torch.ones(1000, device='cuda').sum().item())"
_PID = "import os\nprint(os.getpid())"


@dataclass(frozen=True, slots=True)
class Idle:
    """What notebooks cost, each."""

    device_bytes: float
    #: the process's own part of the machine's memory
    host_bytes: float
    #: from asking for a kernel to the first result
    first_seconds: float


async def measure(bench: Bench) -> None:
    """Open notebooks one after another, let each compute once, and see what is in use while all idle."""
    count = 2 if bench.software else 4
    users = [f"user{number}" for number in range(count)]
    with bench.stack(*users, groups={"lab": users}) as stack:
        shared = await _open(bench, "sessions", sessions(stack))
    with StockServer() as server:
        stock = await _open(bench, "stock kernels", processes(server, count))
    device = [format_bytes(int(each.device_bytes)) for each in (shared, stock)]
    host = [format_bytes(int(each.host_bytes)) for each in (shared, stock)]
    first = [brief(each.first_seconds) for each in (shared, stock)]
    fit = [int(bench.gpu.facts.total_bytes // max(1.0, each.device_bytes)) for each in (shared, stock)]
    hows = {
        "device_bytes": f"Each of {count} notebooks that computed once and idle has {device[0]} of the device in a "
        f"session, {device[1]} in a stock kernel; of such, {fit[0]} and {fit[1]} fit on this device.",
        "host_bytes": f"Its part of the machine's memory: {host[0]} and {host[1]}.",
        "first_seconds": f"From asking for a kernel to the first result of the device: {first[0]} and {first[1]} "
        "(medians).",
    }
    for metric, how in hows.items():
        value = getattr(shared, metric) / max(1e-9, getattr(stock, metric))
        bench.add(Result(metric=metric, value=value, unit="ratio", target=Target("<=", 1.0), how=how))


async def _open(bench: Bench, what: str, routes: list[Route]) -> Idle:
    bench.say(f"{len(routes)} {what}")
    before, took, host = bench.used_bytes(), [], []
    async with AsyncExitStack() as contexts:
        for route in routes:
            begun = time.monotonic()
            notebook = await contexts.enter_async_context(open_notebook(route))
            await notebook.value(_FIRST)
            took.append(time.monotonic() - begun)
            host.append(_own_bytes(await notebook.value(_PID)))
        used = bench.used_bytes() - before
    return Idle(used / len(routes), sum(host) / len(routes), statistics.median(took))


def _own_bytes(pid: int) -> int:
    """Return a process's memory, what it shares with others in equal parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main("idle", measure)
