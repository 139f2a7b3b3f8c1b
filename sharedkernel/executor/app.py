"""The command ``sharedkernel executor``."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any, ClassVar

from traitlets import Bool, Float, Int, TraitError, Unicode, Union, validate

from sharedkernel.commands.base import CommandApp, fail
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices import host
from sharedkernel.executor.service import ExecutorService
from sharedkernel.paths import default_runtime_directory
from sharedkernel.protocol import Device
from sharedkernel.scheduling.model import SchedulerConfig
from sharedkernel.units import format_bytes, parse_bytes, parse_duration

log = logging.getLogger(__name__)


class ExecutorApp(CommandApp):
    """Owns one device and runs everybody's sessions on it."""

    name = "executor"
    description = "Own one device and run everybody's sessions on it, for the gateway of the same runtime directory."
    examples = """
        sharedkernel executor --capacity 8GiB               # the processor and 8 GiB of memory
        sharedkernel executor --policy fifo --quantum 100ms
    """

    device = Unicode("host", help="The device: `host` (the processor).").tag(config=True)
    capacity = Unicode("", help="The device's memory, such as 8GiB; empty: half of the machine's.").tag(config=True)
    reserve = Unicode("0", help="Device memory kept free, such as 256MiB.").tag(config=True)
    runtime_dir = Unicode(help="Private directory where gateway and executor meet.").tag(config=True)
    policy = Unicode("fair", help="Who is served first: `fair` or `fifo`.").tag(config=True)
    quantum = Union(
        [Float(), Unicode()], default_value="50ms", help="How far a holder may get ahead before others are served."
    ).tag(config=True)
    preempt_patience = Union(
        [Float(), Unicode()],
        default_value="50ms",
        help="How long a holder may take to its next iteration boundary before it is made to yield.",
    ).tag(config=True)
    parallel_lanes = Int(
        1, help="Sessions that may compute at the same time, if they leave each other enough of the device."
    ).tag(config=True)
    spares = Int(1, help="Sessions kept ready for the next users; 0 saves their memory.").tag(config=True)
    end_sessions_on_exit = Bool(
        False, help="End all sessions when this ends; else they run on and the next executor adopts them."
    ).tag(config=True)

    aliases: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "device": "ExecutorApp.device",
        "capacity": "ExecutorApp.capacity",
        "reserve": "ExecutorApp.reserve",
        "runtime-dir": "ExecutorApp.runtime_dir",
        "policy": "ExecutorApp.policy",
        "quantum": "ExecutorApp.quantum",
        "preempt-patience": "ExecutorApp.preempt_patience",
        "parallel-lanes": "ExecutorApp.parallel_lanes",
        "spares": "ExecutorApp.spares",
    }
    flags: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "end-sessions-on-exit": (
            {"ExecutorApp": {"end_sessions_on_exit": True}},
            "End all sessions when this ends; without it they run on.",
        ),
    }

    @validate("parallel_lanes", "spares")
    def _not_negative(self, proposal: Any) -> int:
        least = 1 if proposal["trait"].name == "parallel_lanes" else 0
        if proposal["value"] < least:
            raise TraitError(f"{proposal['trait'].name} must be at least {least}, not {proposal['value']}")
        return int(proposal["value"])

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises
        ------
        SystemExit
            With 2 for values that cannot be used, 1 when the runtime directory cannot be.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            device = self._find_device()
            config = self._freeze(device)
        except SharedKernelError as error:
            fail(str(error), status=2)
        directory = Path(self.runtime_dir) if self.runtime_dir else default_runtime_directory()
        try:
            asyncio.run(self._serve(directory, device, config))
        except SharedKernelError as error:
            fail(str(error))
        except OSError as error:
            fail(f"cannot serve from {directory}: {error.strerror or error}; name another --runtime-dir.")

    def _find_device(self) -> Device:
        if self.device != "host":
            raise SharedKernelError(f"there is no device {self.device!r}; the only one known is host.")
        capacity = parse_bytes(self.capacity) if self.capacity else None
        return host.describe(capacity, parse_bytes(self.reserve))

    def _freeze(self, device: Device) -> SchedulerConfig:
        return SchedulerConfig(
            capacity=device.capacity_bytes,
            reserve=device.reserve_bytes,
            policy=self.policy,
            quantum=parse_duration(self.quantum),
            preempt_patience=parse_duration(self.preempt_patience),
            parallel_lanes=self.parallel_lanes,
        )

    async def _serve(self, directory: Path, device: Device, config: SchedulerConfig) -> None:
        service = ExecutorService(directory, device, config, spares=self.spares)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        # Before the start, which leaves processes behind if it is cut short.
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, ended.set)
        await service.start()
        log.info("serving %s with %s from %s", device.name, format_bytes(device.capacity_bytes), directory)
        waits = [asyncio.create_task(ended.wait()), asyncio.create_task(service.stopped.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not service.stopped.is_set():
            await service.stop(end_sessions=self.end_sessions_on_exit)
