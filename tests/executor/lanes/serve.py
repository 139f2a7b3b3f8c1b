"""An executor that serves a GPU of memory files, by the tests' stand-ins for NVML and for CUDA's driver."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from sharedkernel.executor.devices.cuda.device import CudaDevice, CudaOptions
from sharedkernel.executor.devices.cuda.discovery import describe, open_lanes
from sharedkernel.executor.service import start_executor
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.system.nvml import Gpu
from tests.device_memory.fake_cuda import FakeCuda
from tests.fake_nvml import FakeGpu, FakeNvml

MIB = 1 << 20


#: room for what two sessions keep, their contexts of 600 MiB and one lane of theirs, but not for two lanes
USABLE = 1960 * MIB


async def serve(runtime_directory: Path, check_lanes: bool) -> None:
    """Serve until told to stop."""
    gpu = Gpu("cuda:0", library=FakeNvml(FakeGpu(uuid="GPU-1", total=USABLE + 64 * MIB, reserved=0)), host_pids=True)
    device = describe(gpu.facts, None, 64 * MIB)
    lanes = open_lanes(FakeCuda(), device)
    served = CudaDevice(gpu, device, CudaOptions(check_lanes=check_lanes), lanes=lanes)
    config = SchedulerConfig(
        capacity=device.capacity_bytes,
        reserve=device.reserve_bytes,
        quantum=0.02,
        # Memory files are slow to scrub; nobody is to be stopped for that.
        preempt_patience=5.0,
    )
    service = await start_executor(runtime_directory, served, config)
    await service.stopped.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve(Path(sys.argv[1]), "check" in sys.argv[2:]))
