"""``sharedkernel host``: keep the services of this machine running, an executor for each device and a gateway."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from pathlib import Path

from traitlets import Unicode

from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.errors import SharedKernelError
from sharedkernel.paths import default_runtime_directory, device_directory, make_private_directory, parse_devices
from sharedkernel.services import LastingService, keep_running
from sharedkernel.system.lock_file import EXECUTOR_LOCK, GATEWAY_LOCK, HOST_LOCK, lock_directory
from sharedkernel.system.nvml import visible_gpus


class HostApp(CommandApp):
    """Keeps the executors and the gateway of this machine running."""

    name = "host"
    description = """
        Serve everybody's notebooks from all GPUs of this machine: an executor for each, and a gateway.

        A service that ends is started again, and one that runs already is adopted. What follows -- goes to the gateway.
        SIGTERM ends all of them, SIGHUP has the gateway read its configuration again; sessions outlive both.
    """
    examples = """
        sharedkernel host
        sharedkernel host --devices cuda:0,cuda:1 --executor-options="--lane-sharing all"
        sharedkernel host -- --identity tokens --ip 0.0.0.0 --certfile gpu.crt --keyfile gpu.key
    """
    accepts_arguments = True

    devices = Unicode(
        "",
        help="The devices to serve, such as cuda:0,cuda:1 or host. Default: all GPUs, and the processor (`host`) where "
        "there is none.",
    )
    executor_options = Unicode(
        "", help='Options for each executor, in quotes after a =, such as ="--policy srtf --lane-sharing all".'
    )
    runtime_dir = Unicode(
        help="Private directory where gateway and executors meet. Default: $XDG_RUNTIME_DIR/sharedkernel, or "
        "/tmp/sharedkernel-UID where there is none."
    )

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises
        ------
        SystemExit
            With 2 for devices or options that cannot be used, 1 when a service cannot be started or another
            `sharedkernel host` serves there.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            devices = list(parse_devices(self.devices)) if self.devices else visible_gpus(os.environ)
            options = shlex.split(self.executor_options)
        except ValueError as error:
            fail(f"--executor-options cannot be read ({error}); check its quotes.", status=2)
        except SharedKernelError as error:
            fail(str(error), status=2)
        if not devices:
            self.log.warning("no GPU was found: serving the processor")
            devices = ["host"]
        directory = Path(self.runtime_dir).absolute() if self.runtime_dir else default_runtime_directory()
        # Of two supervisors each would start again what the other one ends.
        lock_directory(make_private_directory(directory), HOST_LOCK)
        program, runtime = [sys.executable, "-m", "sharedkernel"], ["--runtime-dir", str(directory)]
        executors = [
            LastingService(
                f"executor {device}",
                [*program, "executor", "--device", device, *runtime, *options],
                device_directory(directory, device) / EXECUTOR_LOCK,
            )
            for device in devices
        ]
        if len(devices) > 1 or device_directory(directory, devices[0]) != directory:
            # A gateway of one device finds it by itself, and then shows no column of devices.
            runtime.append(f"--SharedKernelGateway.executors={','.join(devices)}")
        command = [*program, "gateway", *runtime, *self.extra_args]
        asyncio.run(keep_running(executors, LastingService("gateway", command, directory / GATEWAY_LOCK)))
