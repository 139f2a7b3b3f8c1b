"""What processes hold: memory and descriptors, and what they grow by."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from scipy.stats import theilslopes

from sharedkernel.local_stack import LocalStack

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one moment."""

    #: seconds on the monotonic clock
    at: float
    #: what is its own; files, and so what other processes map of them, left out
    anonymous_bytes: int
    #: what it may write to without asking the system for more (VmData): the first nears this one, and never passes it
    #: by more than a stack, as an allocator's free pages come to be used
    held_bytes: int
    num_descriptors: int


def memory_bytes(pid: int, kind: str, file: str = "smaps_rollup") -> int:
    """Return what the system counts of a process's memory under the name *kind*, in bytes."""
    found = re.search(rf"^{kind}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found.group(1))


def median_pss_bytes(pids: Iterable[int]) -> float:
    """Return the median of the processes' own memory and their part of what they share, in bytes."""
    return statistics.median(memory_bytes(pid, "Pss") for pid in pids)


def services(stack: LocalStack) -> dict[str, int]:
    """Return the process ids of a stack's services by name."""
    gateway, executor = stack.gateway.process, stack.executor.process
    assert gateway is not None
    assert executor is not None
    found = {"gateway": gateway.pid, "executor": executor.pid}
    for child in psutil.Process(executor.pid).children():
        if "sharedkernel.executor.supervision.warm_parent" in child.cmdline():
            found["warm_parent"] = child.pid
    return found


class Growth:
    """Follows processes over time.

    Parameters
    ----------
    pids
        Process ids by name.
    interval
        Seconds between two looks.
    """

    def __init__(self, pids: Mapping[str, int], *, interval: float = 5.0) -> None:
        self.pids = dict(pids)
        self.samples: dict[str, list[Sample]] = {name: [] for name in pids}
        self._interval = interval

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            for name, pid in self.pids.items():
                with contextlib.suppress(OSError, psutil.NoSuchProcess):
                    self.samples[name].append(
                        Sample(
                            at=time.monotonic(),
                            anonymous_bytes=memory_bytes(pid, "Anonymous"),
                            held_bytes=memory_bytes(pid, "VmData", "status"),
                            num_descriptors=psutil.Process(pid).num_fds(),
                        )
                    )
            await asyncio.sleep(self._interval)

    def bytes_per_hour(self, name: str, since: float = 0.0, until: float = 1.0) -> float:
        """Return what a process's memory grows by, in bytes per hour, between two parts of the time (0 to 1)."""
        return self._slope(name, [sample.anonymous_bytes for sample in self.samples[name]], since, until)

    def held_bytes_per_hour(self, name: str) -> float:
        """Return what a process holds more each hour of what it may write to, in bytes."""
        return self._slope(name, [sample.held_bytes for sample in self.samples[name]])

    def descriptors_per_hour(self, name: str) -> float:
        """Return how many descriptors more a process has each hour."""
        return self._slope(name, [sample.num_descriptors for sample in self.samples[name]])

    def _slope(self, name: str, values: Sequence[float], since: float = 0.0, until: float = 1.0) -> float:
        part = slice(int(since * len(values)), int(until * len(values)))
        times = [sample.at for sample in self.samples[name]][part]
        # the median of all pairs' slopes: one garbage collection does not tilt it
        return float(theilslopes(values[part], times).slope) * _HOUR
