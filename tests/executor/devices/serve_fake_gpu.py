"""An executor that serves a GPU which only NVML's stand-in knows; run as a process by the tests.

Its sessions are real, with what they have for a GPU, on a build of torch that has none.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

from sharedkernel.executor.devices.cuda.device import CudaDevice, CudaOptions
from sharedkernel.executor.devices.cuda.discovery import describe
from sharedkernel.executor.isolation.policy import Isolation, IsolationOptions
from sharedkernel.executor.service import ExecutorService, LastingDirectories
from sharedkernel.executor.sessions.pool import IN_DEMAND
from sharedkernel.executor.supervision.environments import open_environments
from sharedkernel.paths import SHELF_DIRECTORY
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.system.nvml import Gpu
from tests.fake_nvml import GIB, FakeGpu, FakeNvml


async def serve(runtime_directory: Path) -> None:
    """Serve until told to stop.

    SIGUSR1 loses the GPU, SIGUSR2 lets every session hold 50 GiB of it, SIGHUP lets it work ten seconds for each.
    """
    fake = FakeGpu(uuid="GPU-1", total=16 * GIB, reserved=0, percent=50)
    gpu = Gpu("cuda:0", library=FakeNvml(fake), host_pids=True)
    device = CudaDevice(
        gpu, describe(gpu.facts, None, None), CudaOptions(overuse_patience=0.0), lanes="it is not there."
    )
    config = SchedulerConfig(capacity=device.device.capacity_bytes, reserve=device.device.reserve_bytes)
    service = ExecutorService(
        runtime_directory,
        device,
        config,
        lasting=LastingDirectories(runtime_directory, runtime_directory / SHELF_DIRECTORY),
        isolation=Isolation(IsolationOptions(isolate="off"), runtime_directory),
        environments=open_environments({}),
        spares=(1, IN_DEMAND),
        start_timeout=50.0,
    )
    await service.start()

    def hoard() -> None:
        fake.processes = {process.pid: 50 * GIB for process in service.sessions.values()}

    def work() -> None:
        now = time.time_ns() // 1000
        for second in range(2, 12, 2):
            for process in service.sessions.values():
                fake.use.append((process.pid, now + second * 1_000_000, 100))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(fake, "lost", True))
    loop.add_signal_handler(signal.SIGUSR2, hoard)
    loop.add_signal_handler(signal.SIGHUP, work)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await service.stop(end_sessions=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve(Path(sys.argv[1])))
