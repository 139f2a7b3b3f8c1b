"""A month of notebooks: devices reserved, bound and shared."""

from __future__ import annotations

import time

from benchmarks.simulate import tables
from sharedkernel.simulator.notebooks import (
    SharedOptions,
    bound_devices,
    fewest_devices,
    notebooks_of,
    reserved_devices,
)
from sharedkernel.simulator.traces import read_trace


def main() -> None:
    """Print the devices that are needed, and how many notebooks share one within a wait."""
    began = time.perf_counter()
    jobs = read_trace(tables.trace("notebookos", "sensei_june_60sec.csv"), time_unit="min").jobs
    notebooks = notebooks_of(jobs)
    bound, reserved = bound_devices(notebooks), reserved_devices(notebooks)
    took = time.perf_counter() - began
    rows = [
        ["bound while cells run", 216, bound.mean, 312, bound.p95, 372, bound.most],
        ["reserved, first cell to last", 867, reserved.mean, 1115, reserved.p95, 1127, reserved.most],
    ]
    columns = ["devices", "mean, published", "ours", "p95, published", "ours", "most, published", "ours"]
    tables.table(f"{len(jobs):,} cells of {len(notebooks)} notebooks, counted in {took:.1f} s", columns, rows)
    options = SharedOptions(devices=200, capacity=14 << 30)
    names = ("devices", "notebooks_per_device", "p95_start_wait_seconds", "p50_slowdown", "p95_slowdown")
    rows = []
    for wait in (60.0, 10.0, 1.0):
        began = time.process_time()
        found = fewest_devices(notebooks, options, wait=wait).figures()
        rows.append([f"{wait:g} s", *(found[name] for name in names), time.process_time() - began])
    columns = [
        "p95 wait at most",
        "devices",
        "notebooks per device",
        "p95 wait, s",
        "slowdown p50",
        "p95",
        "processor, s",
    ]
    tables.table("cells that want one device, shared: fewest devices of 14 GiB", columns, rows)


if __name__ == "__main__":
    main()
