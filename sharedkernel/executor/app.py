"""The command ``sharedkernel executor``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from traitlets import Bool, Dict, Enum, Float, Int, List, Unicode, Union

from sharedkernel import paths
from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices import ServedDevice, host
from sharedkernel.executor.devices.cuda import discovery
from sharedkernel.executor.devices.cuda.device import CudaDevice, CudaOptions, LaneSharing
from sharedkernel.executor.devices.cuda.mps import MpsMode
from sharedkernel.executor.isolation.policy import DEFAULT_HOMES, Isolation, IsolationOptions
from sharedkernel.executor.service import ExecutorService, LastingDirectories
from sharedkernel.executor.sessions.pool import IN_DEMAND
from sharedkernel.executor.supervision.environments import open_environments
from sharedkernel.protocol import Device
from sharedkernel.scheduling.model.config import DEFAULT_POLICY, SchedulerConfig
from sharedkernel.scheduling.policies.registry import POLICY_HELP
from sharedkernel.selftest.steps import table
from sharedkernel.system.log_filter import RepetitionFilter
from sharedkernel.system.malloc import keep_trimmed
from sharedkernel.system.nvml import visible_gpus
from sharedkernel.units import format_bytes, parse_bytes, parse_duration

log = logging.getLogger(__name__)

#: of a GPU: its launches are queued far ahead, and what lives in the middle of an iteration has to be moved out
_PREEMPT_ITERATIONS = 2.0


def _duration(default: str, help: str) -> Any:
    """Return an option that is a number of seconds, or a text such as 50ms."""
    return Union([Float(), Unicode()], default_value=default, help=help).tag(config=True)


class ExecutorApp(CommandApp):
    """Owns one device and runs everybody's sessions on it."""

    name = "executor"
    description = "Own one device and run everybody's sessions on it, for the gateway of the same runtime directory."
    examples = """
        sharedkernel executor                               # the first NVIDIA GPU, if there is one
        sharedkernel executor --device host --capacity 8GiB # the processor and 8 GiB of memory
        sharedkernel executor --policy fifo --quantum 100ms
        sharedkernel executor --device cuda:1               # beside it, for a gateway that names both
    """

    device = Unicode(
        "",
        help="The device: `cuda:N` (an NVIDIA GPU), `cuda:N:M` (its MIG instance M, also by UUID: `MIG-…`), `host` "
        "(the processor), or `host:N` (one of several executors that share out the processor's memory by --capacity). "
        "Default: the first GPU, or the processor if there is none.",
    ).tag(config=True)
    capacity = Unicode(
        "", help="The device's memory, such as 8GiB; empty: half of the machine's, or all of a GPU's."
    ).tag(config=True)
    reserve = Unicode(
        "", help="Device memory kept free, such as 256MiB; empty: none on the host, 2 % of a GPU (at least 512MiB)."
    ).tag(config=True)
    runtime_dir = Unicode(
        help="Private directory where gateway and executor meet. Default: $XDG_RUNTIME_DIR/sharedkernel, or "
        "/tmp/sharedkernel-UID where there is none."
    ).tag(config=True)
    state_dir = Unicode(
        help="Private directory for what outlives a reboot: users' totals, and how long cells took. Default: "
        "$XDG_STATE_HOME/sharedkernel, or ~/.local/state/sharedkernel; in it, one for each runtime_dir that is named."
    ).tag(config=True)
    shelf_dir = Unicode(
        "",
        help="Directory on a disk for users' shelves, which outlive a reboot. Default: one among the homes, or in "
        "state_dir.",
    ).tag(config=True)
    policy = Unicode(DEFAULT_POLICY, help=f"Who is served first. {POLICY_HELP}").tag(config=True)
    quantum = _duration("50ms", "How far a holder may get ahead before others are served.")
    preempt_patience = _duration(
        "50ms", "How long a holder may take to its next iteration boundary before it is made to yield."
    )
    # others have to end their cells, and be idle for their `offload_after`, until their memory can be moved
    growth_patience = _duration(
        "5m", "How long a cell waits for memory that it comes to need in its middle, before it gets an error."
    )
    memory_quantum = _duration(
        "20s",
        "How long a notebook's memory stays on the device at least while others wait for room; then it is moved "
        "out in the middle of its cell, and comes back in its turn. At least twelve times what moving takes; `never` "
        "leaves it there until the cell ends.",
    )
    parallel_lanes = Int(
        1, min=1, help="Sessions that may compute at the same time, if they leave each other enough of the device."
    ).tag(config=True)
    lane_sharing = Enum(
        [str(sharing) for sharing in LaneSharing],
        default_value="group",
        help="Whose sessions may share a lane's bytes on a GPU: one `user`'s, one `group`'s, or `all`.",
    ).tag(config=True)
    mps = Enum(
        [str(mode) for mode in MpsMode],
        default_value="off",
        help="NVIDIA's MPS, for lanes side by side on a GPU: `off`, `auto` (if it starts) or `require`. "
        "With it, one session's fatal fault on the GPU ends the others' work there.",
    ).tag(config=True)
    start_timeout = _duration(
        "50s",
        "How long a session may take until it is ready for its user, IPython startup files and all; then it is "
        "ended, and the start refused.",
    )
    overuse_patience = _duration(
        "30s",
        "How long a session that exceeds its user's quota outside PyTorch, or lifts its limit on the host device, "
        "has between warning, offloading and its end.",
    )
    check_lanes = Bool(
        False,
        help="Fill a lane with nonsense whenever a session on a GPU hands it over, so that a use of memory that should "
        "have been kept shows as not-a-number; for finding faults, since each switch then takes milliseconds.",
    ).tag(config=True)
    self_test = Bool(
        False, help="Only try the GPU, as each start does, and print what works; exit code 1 if something does not."
    ).tag(config=True)
    trust = Unicode(
        "",
        help="File of what passed the self-test: it is not tried again with the same driver, torch, GPU and version of "
        "this package; what passes is added. Empty: each start tries everything.",
    ).tag(config=True)
    environments = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        help="More Python environments for notebooks, as NAME=PYTHON, such as torch-2.11=/opt/torch-2.11/bin/python; "
        "each is the kernel `shared-gpu-NAME`, and needs this package installed with its extra `host`.",
    ).tag(config=True, option="environment")
    isolate = Enum(
        ["auto", "users", "off"],
        default_value="auto",
        help="Run each user's sessions under an account of their own: `users` (needs root), `off`, or `auto`: as root "
        "with a --uid-range.",
    ).tag(config=True)
    uid_range = Unicode(
        "",
        help="User ids for users without an account on this machine, such as 200000-299999; empty: they are refused.",
    ).tag(config=True)
    homes = Unicode(
        "",
        help="Directory of the homes of users without one on this machine, and of the file of their user ids. Default: "
        f"{DEFAULT_HOMES} where sessions run under accounts of their own, else all share the home of the executor.",
    ).tag(config=True)
    gateway_user = Unicode(
        "",
        help="Account of the gateway, where sessions run under users' own accounts and it is not root; empty: it runs "
        "as the executor does.",
    ).tag(config=True)
    device_groups = List(
        Unicode(), ["video", "render"], help="Groups that sessions under users' own accounts have besides their own."
    ).tag(config=True, option=None)
    user_memory = Unicode(
        "",
        help="Memory of the machine that a user's sessions may have in all, such as 32GiB, where control groups can be "
        "made; empty: any.",
    ).tag(config=True)
    user_processes = Int(
        4096, min=1, help="Processes and threads that a user's sessions may have in all, under an account of their own."
    ).tag(config=True, option=None)
    session_files = Int(
        8192, min=1, help="Files that each process of a session may have open, under an account of its own."
    ).tag(config=True, option=None)
    spares = Int(1, min=0, help="Sessions kept ready for the next users; 0 saves their memory.").tag(config=True)
    spares_in_demand = Int(
        IN_DEMAND,
        min=0,
        help="Sessions kept ready while they are started within a minute of each other, unless `spares` is 0; in a "
        "rush, as when a class begins, as many as were started within a minute, up to three times this number.",
    ).tag(config=True, option=None)
    end_sessions_on_exit = Bool(
        False, help="End all sessions when this ends; else they run on and the next executor adopts them."
    ).tag(config=True)

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT, or try the GPU.

        Raises
        ------
        SystemExit
            With 2 for values that cannot be used, 1 when the runtime directory cannot be, or the self-test failed.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("asyncio").addFilter(RepetitionFilter())  # of connections for which there is no descriptor
        is_chosen = not self.device
        try:
            self.device = self.device or next(iter(visible_gpus(os.environ)), "host")
            served = self._find_device()
            config = self._freeze(served.device)
            start_timeout = parse_duration(self.start_timeout)
        except SharedKernelError as error:
            fail(str(error), status=2)
        if self.self_test:
            self._test(served)
            return
        if is_chosen and self.device == "host":
            log.info("no GPU was found: serving the processor")
        elif is_chosen:
            log.info("serving %s; `--device host` serves the processor instead", self.device)
        parent = Path(self.runtime_dir) if self.runtime_dir else paths.default_runtime_directory()
        directory = paths.device_directory(parent, self.device)
        try:
            environments = open_environments(self.environments)
            isolation = self._isolate(directory, parent)
            for environment in environments.values():
                isolation.check_python(environment.python, environment.folders)
            if directory != parent:  # made on the way to the subdirectory, it would be open to others
                paths.make_private_directory(parent)
            state = paths.make_state_directory(self.state_dir, parent, directory, self.device)
            lasts = self.state_dir or state != directory
            shelves = paths.shelf_directory(self.shelf_dir, isolation.homes, state if lasts else None, directory)
            make = partial(
                ExecutorService,
                directory,
                served,
                config,
                lasting=LastingDirectories(state, shelves),
                isolation=isolation,
                environments=environments,
                spares=(self.spares, self.spares_in_demand),
                start_timeout=start_timeout,
            )
            asyncio.run(self._serve(make, served, directory))
        except SharedKernelError as error:
            fail(str(error))
        except OSError as error:
            fail(f"cannot serve from {directory}: {error.strerror or error}; name another --runtime-dir.")

    def _test(self, served: ServedDevice) -> None:
        """Print what the self-test finds."""
        if not isinstance(served, CudaDevice):
            fail("the self-test is about GPUs; name one with --device cuda:0.", status=2)
        verdict = asyncio.run(served.try_out())
        for note in verdict.notes:
            log.warning("%s", note)
        print(table(verdict))  # noqa: T201
        if not verdict.is_whole:
            sys.exit(1)

    def _find_device(self) -> ServedDevice:
        kind, _, number = self.device.partition(":")
        if self.device == "host" or (kind == "host" and number.isdecimal()):
            capacity = parse_bytes(self.capacity) if self.capacity else None
            described = host.describe(capacity, parse_bytes(self.reserve or 0), self.device)
            return host.HostLimits(described, parse_duration(self.overuse_patience))
        options = CudaOptions(
            lane_sharing=LaneSharing(self.lane_sharing),
            mps=MpsMode(self.mps),
            parallel_lanes=self.parallel_lanes,
            overuse_patience=parse_duration(self.overuse_patience),
            check_lanes=self.check_lanes,
        )
        trust = Path(self.trust).expanduser().absolute() if self.trust else None
        return discovery.open_device(self.device, self.capacity, self.reserve, options, trust=trust)

    def _freeze(self, device: Device) -> SchedulerConfig:
        return SchedulerConfig(
            capacity=device.capacity_bytes,
            reserve=device.reserve_bytes,
            policy=self.policy,
            quantum=parse_duration(self.quantum),
            preempt_patience=parse_duration(self.preempt_patience),
            growth_patience=parse_duration(self.growth_patience),
            memory_quantum=None if self.memory_quantum == "never" else parse_duration(self.memory_quantum),
            parallel_lanes=self.parallel_lanes,
            preempt_iterations=_PREEMPT_ITERATIONS if device.kind == "cuda" else 0.0,
            # elsewhere there is more to a turn: a lane, or work that is queued on the device
        )

    def _isolate(self, directory: Path, parent: Path) -> Isolation:
        options = IsolationOptions(
            **{each.name: getattr(self, each.name) for each in fields(IsolationOptions)}
            | {"user_memory": parse_bytes(self.user_memory) if self.user_memory else None}
        )
        isolation = Isolation(options, directory, passages=[parent])
        log.log(logging.INFO if isolation.uses_accounts else logging.WARNING, "%s", isolation.sentence)
        return isolation

    async def _serve(self, make: Callable[[], ExecutorService], served: ServedDevice, directory: Path) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            ended.set()
            served.hurry()

        # Before the start, which leaves processes behind if it is cut short.
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, end)
        service = make()
        await service.start()
        device = served.device
        log.info("serving %s with %s from %s", device.name, format_bytes(device.capacity_bytes), directory)
        trimming = asyncio.create_task(keep_trimmed())
        await ended.wait()
        trimming.cancel()
        await service.stop(end_sessions=self.end_sessions_on_exit)
