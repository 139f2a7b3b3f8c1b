"""An executor that serves a GPU which only NVML's stand-in knows; run as a process by the tests.

Its sessions are real, with what they have for a GPU, on a build of torch that has none.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sharedkernel.executor.app import ExecutorApp
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.devices.cuda.device import CudaDevice, CudaOptions
from sharedkernel.executor.devices.cuda.discovery import describe
from sharedkernel.executor.service import ExecutorService
from sharedkernel.system.nvml import Gpu
from tests.fake_nvml import GIB, FakeGpu, FakeNvml


class FakeGpuApp(ExecutorApp):
    """Serves it, whatever device is named.

    SIGUSR1 loses the GPU, SIGUSR2 lets every session hold 50 GiB of it, SIGHUP lets it work ten seconds for each.
    """

    fake = FakeGpu(uuid="GPU-1", total=16 * GIB, reserved=0, percent=50)

    def _find_device(self) -> ServedDevice:
        gpu = Gpu("cuda:0", library=FakeNvml(self.fake), host_pids=True)
        options = CudaOptions(overuse_patience=0.0)
        return CudaDevice(gpu, describe(gpu.facts, None, None), options, lanes="it is not there.")

    async def _serve(self, make: Callable[[], ExecutorService], served: ServedDevice, directory: Path) -> None:
        service, fake = make(), self.fake

        def hoard() -> None:
            fake.processes = {process.pid: 50 * GIB for process in service.sessions.values()}

        def work() -> None:
            assert fake.use is not None
            now = time.time_ns() // 1000
            for second in range(2, 12, 2):
                fake.use += [(process.pid, now + second * 1_000_000, 100) for process in service.sessions.values()]

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(fake, "lost", True))
        loop.add_signal_handler(signal.SIGUSR2, hoard)
        loop.add_signal_handler(signal.SIGHUP, work)
        await super()._serve(lambda: service, served, directory)


if __name__ == "__main__":
    FakeGpuApp.launch_instance()
