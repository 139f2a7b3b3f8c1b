"""How many messages one processor of a gateway passes on: a cell publishes in bursts, and a page reads all of it.

Counted by the processor time of the server's own process, since the cell, the page and the server share the machine's
processors. No limit on a session's outputs is set, on either side.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

import psutil

from benchmarks.stack.client import Notebook, open_notebook
from benchmarks.stack.results import Conditions, Result, Target, median_ratio
from benchmarks.stack.servers import StockServer, gateway_route
from sharedkernel.local_stack import LocalStack
from sharedkernel.services import Service

#: messages of one flood
_MESSAGES = 10_000
#: messages before it counts
_WARM_UP = 1000
#: publishes one line again and again, in bursts that a stock kernel's queue can hold: it drops what is beyond that, the
#: end of the cell too
_CELL = """
import time
kernel = get_ipython().kernel
message = kernel.session.msg("stream", {{"name": "stdout", "text": "a line of output\\n"}}, kernel.get_parent())
frames = kernel.session.serialize(message, b"stream")
for _ in range({count} // 500):
    for _ in range(500):
        kernel.iopub_thread.send_multipart(frames)
    time.sleep(0.1)
"""
_NO_LIMITS = (
    "c.SessionKernels.output_messages_per_second = 0\n"
    "c.SessionKernels.output_bytes_per_second = 0\n"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Flood:
    #: messages that the page got
    num_messages: int
    #: processor time of the server's process
    processor_seconds: float
    #: from sending the cell until all had come
    seconds: float

    @property
    def rate(self) -> float:
        """Messages per second of processor time."""
        return self.num_messages / self.processor_seconds


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `flood`."""
    stack = LocalStack(**conditions.stack_options, config=_NO_LIMITS)
    with stack, StockServer(options=["--ZMQChannelsWebsocketConnection.limit_rate=False"]) as server:
        return asyncio.run(_measure(conditions, stack, server))


async def _measure(conditions: Conditions, stack: LocalStack, server: StockServer) -> list[Result]:
    runs = conditions.effort.runs(7)
    services = {"stock": server.service, "gateway": stack.gateway}
    floods: dict[str, list[_Flood]] = {name: [] for name in services}
    async with AsyncExitStack() as contexts:
        notebooks = {
            name: await contexts.enter_async_context(open_notebook(route))
            for name, route in (("stock", server.stock), ("gateway", gateway_route(stack)))
        }
        for name, service in services.items():
            await _flood(notebooks[name], service, _WARM_UP)
        for turn in range(runs):
            conditions.say(f"{_MESSAGES} messages from each side, {turn + 1} of {runs}")
            for name, service in services.items():
                floods[name].append(await _flood(notebooks[name], service, _MESSAGES))
    rates = {name: [flood.rate for flood in taken] for name, taken in floods.items()}
    stock, gateway = (
        f"{statistics.median(rates[name]):,.0f} "
        f"({statistics.median(flood.num_messages / flood.seconds for flood in floods[name]):,.0f} by the clock)"
        for name in ("stock", "gateway")
    )
    return [
        Result(
            metric="messages_per_second",
            value=median_ratio(rates["gateway"], rates["stock"]),
            unit="ratio",
            target=Target(">=", 1),
            how=f"Lines of output that a page got, for each second of the server's processor time: {stock} of a stock "
            f"Jupyter server, {gateway} of the gateway; medians, and the median ratio, of {runs} alternating pairs "
            f"of {_MESSAGES:,} lines.",
        )
    ]


async def _flood(notebook: Notebook, service: Service, count: int) -> _Flood:
    """Run a cell that publishes *count* lines, each in a message of its own."""
    assert service.process is not None
    server = psutil.Process(service.process.pid)
    before, began_at = server.cpu_times(), time.perf_counter()
    num_messages = await notebook.count(_CELL.format(count=count))
    seconds, after = time.perf_counter() - began_at, server.cpu_times()
    return _Flood(num_messages, after.user + after.system - before.user - before.system, seconds)
