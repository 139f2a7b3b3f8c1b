"""Measure what the launch hook costs: a launch through the driver's address, and a small operation of torch.

    python benchmarks/gpu/launch_hook/measure.py
    python -m tests.software_gpu.run --set KERNEL_US=0 -- python benchmarks/gpu/launch_hook/measure.py

Exits with 0 when the hook costs less than 100 ns a launch, 1 when it costs more, 2 when it cannot be measured.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks.gpu.launch_hook.hook import Hook, build

TARGET_NS = 100.0
_MODULE = b".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry empty() { ret; }\n"

#: prints seconds for small operations of torch
_OPERATIONS = """if True:
    import sys, time, torch
    x = torch.ones(8, device="cuda")
    def run(count):
        begun = time.perf_counter()
        for _ in range(count):
            torch.ones(8, device="cuda") + 1
        torch.cuda.synchronize()
        return time.perf_counter() - begun
    run(1000)
    print(run(int(sys.argv[1])))
"""


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 1)


def measure_launches(folder: Path, launches: int, rounds: int) -> dict[str, float]:
    """Time launches in this process, which has the hook, through it and past it; nanoseconds a launch."""
    hook = Hook()
    timing = ctypes.CDLL(str(folder / "timing.so"))
    timing.time_launches.restype = ctypes.c_double
    timing.time_launches.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long]
    driver = hook.library
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    calls: list[Callable[[], int]] = [
        lambda: driver.cuInit(0),
        lambda: driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        lambda: driver.cuCtxSetCurrent(context),
        lambda: driver.cuModuleLoadData(ctypes.byref(module), _MODULE),
        lambda: driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty"),
    ]
    for call in calls:
        if error := call():
            raise OSError(f"The driver's calls fail: error {error}.")
    nothing = folder / "nothing"
    nothing.mkdir()
    hooked_nothing = ctypes.CDLL(str(build(nothing, folder / "timing.so")))
    addresses = {
        "hooked": ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value,
        "driver": driver.launch_hook_real(b"cuLaunchKernel"),
        "hooked, a driver that does nothing": ctypes.cast(hooked_nothing.cuLaunchKernel, ctypes.c_void_p).value,
        "a driver that does nothing": ctypes.cast(timing.cuLaunchKernel, ctypes.c_void_p).value,
    }
    hook.close_gate()
    hook.open_gate()  # so that the word is the session's
    times: dict[str, list[float]] = {name: [] for name in addresses}
    for number in range(rounds):
        for name in list(addresses) if number % 2 else reversed(list(addresses)):
            seconds = timing.time_launches(addresses[name], function, None, launches)
            if seconds < 0:
                raise OSError("A launch failed.")
            driver.cuCtxSynchronize()
            times[name].append(seconds / launches * 1e9)
    result = {f"{name}, median": _median(values) for name, values in times.items()}
    result |= {f"{name}, least": round(min(values), 1) for name, values in times.items()}
    differences = [hooked - plain for hooked, plain in zip(times["hooked"], times["driver"], strict=True)]
    return result | {"cost, median of pairs": _median(differences)}


def measure_operations(hook: Path, count: int, rounds: int) -> dict[str, float]:
    """Time torch's operations in processes with and without the hook; microseconds an operation."""
    times: dict[str, list[float]] = {"hooked": [], "plain": []}
    for number in range(rounds):
        for name in ("hooked", "plain") if number % 2 else ("plain", "hooked"):
            variables = {**os.environ, "LD_PRELOAD": str(hook)} if name == "hooked" else None
            output = subprocess.run(
                [sys.executable, "-c", _OPERATIONS, str(count)],
                env=variables, stdout=subprocess.PIPE, text=True, check=True, timeout=300,
            ).stdout  # fmt: skip
            times[name].append(float(output) / count * 1e6)
    result = {f"{name}, median": round(statistics.median(values), 2) for name, values in times.items()}
    return result | {f"{name}, least": round(min(values), 2) for name, values in times.items()}


def main() -> int:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=1_000_000, help="of each run")
    parser.add_argument("--operations", type=int, default=100_000, help="of torch, of each run")
    parser.add_argument("--rounds", type=int, default=9, help="of launches; of operations a third")
    parser.add_argument("--hooked", help=argparse.SUPPRESS)  # this process has the hook, which is in that folder
    options = parser.parse_args()
    if options.hooked:
        print(json.dumps(measure_launches(Path(options.hooked), options.launches, options.rounds)))  # noqa: T201
        return 0
    with tempfile.TemporaryDirectory() as name:
        try:
            hook = build(Path(name))
            output = subprocess.run(
                [sys.executable, *sys.argv, "--hooked", name],
                env={**os.environ, "LD_PRELOAD": str(hook)}, stdout=subprocess.PIPE, text=True, check=True, timeout=600,
            ).stdout  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"The hook cannot be measured: {error}", file=sys.stderr)  # noqa: T201
            return 2
        launches = json.loads(output)
        operations = measure_operations(hook, options.operations, max(options.rounds // 3, 1))
    figures = {"nanoseconds a launch": launches, "microseconds an operation": operations}
    print(json.dumps(figures, indent=2))  # noqa: T201
    return 0 if launches["cost, median of pairs"] < TARGET_NS else 1


if __name__ == "__main__":
    sys.exit(main())
