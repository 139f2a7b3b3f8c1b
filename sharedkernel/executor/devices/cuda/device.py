"""An NVIDIA GPU, or a MIG instance of one, as the executor serves it.

A CUDA context does not survive a fork, so the warm parent must not make one: sessions are told by
`CUDA_VISIBLE_DEVICES` which GPU is theirs, see it as ``cuda:0``, and make their context when their user's code first
needs it. A session's lease holds by a limit on torch's allocator in its process (`session/memory/cuda_meter.py`); what
other libraries take, which programs compute, and who does so without a grant, is watched from outside (`monitor.py`,
`overuse.py`).

Whose sessions may share a lane's bytes is `lane_sharing`: memory that is mapped stays readable to who has it mapped,
so lanes are shared among one user's sessions, one group's, or all. Where the driver can share memory at all, the
executor owns every byte that sessions have on the device (`lane_server.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.errors import ConfigError, Refused
from sharedkernel.executor.devices import ServedDevice, SessionControl
from sharedkernel.executor.devices.cuda.monitor import GpuMonitor, Ungranted, find_programs
from sharedkernel.executor.devices.cuda.mps import Mps, MpsMode
from sharedkernel.executor.devices.lane_server import LaneServer
from sharedkernel.executor.devices.leases import is_worth_telling
from sharedkernel.executor.devices.overuse import Overuse
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.records import SessionRecords
from sharedkernel.executor.processes.user_quota import quota_of
from sharedkernel.executor.supervision.environments import listener_of
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.paths import RECORDS_DIRECTORY, WARM_PARENT_SOCKET
from sharedkernel.protocol import Allowance, Device, Limits
from sharedkernel.selftest.runner import SelfTest
from sharedkernel.selftest.steps import Verdict
from sharedkernel.status.document import DeviceDetails
from sharedkernel.system.nvml import Gpu, GpuFacts, GpuSample

log = logging.getLogger(__name__)

#: file of the runtime directory with the results of the self-test
_RESULTS = "self-test.json"
#: what the status says of a MIG instance
_OF_INSTANCES = (
    "This is a MIG instance, of which NVML reports no use by process: computing without a grant is not charged, and "
    "interference is not measured."
)


class LaneSharing(StrEnum):
    """The sessions that may share a lane's bytes."""

    USER = "user"
    GROUP = "group"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    """The command line's settings for one GPU."""

    lane_sharing: LaneSharing = LaneSharing.GROUP
    mps: MpsMode = MpsMode.OFF
    #: sessions that may compute at the same time
    parallel_lanes: int = 1
    #: seconds between warning, offloading and ending a session that exceeds its user's quota outside torch
    overuse_patience: float = 30.0
    #: poison a lane at each hand-over, to find what still uses it
    check_lanes: bool = False


def visibility(facts: GpuFacts) -> dict[str, str]:
    """Return the variables that show one GPU to a process; should it ever count more, it counts as `nvidia-smi`."""
    return {"CUDA_VISIBLE_DEVICES": facts.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class CudaDevice(ServedDevice):
    """One GPU.

    Parameters
    ----------
    gpu
        It, as NVML sees it.
    device
        What is served of it.
    options
        How.
    lanes
        Gives lanes' bytes to sessions, or one sentence that says why they cannot share any here.
    self_test
        Tries the card before the first session; None: it is trusted.
    """

    def __init__(
        self,
        gpu: Gpu,
        device: Device,
        options: CudaOptions,
        *,
        lanes: LaneServer | str,
        self_test: SelfTest | None = None,
    ) -> None:
        super().__init__(device)
        self._gpu = gpu
        self._options = options
        self._unshared = lanes if isinstance(lanes, str) else None
        self.memory_mode = DeviceMemoryMode.SHARED if self._unshared is None else DeviceMemoryMode.PRIVATE
        self._self_test = self_test
        self._self_test_note = "there was no self-test."
        self._trying: asyncio.Future[Verdict] | None = None
        self.check_lanes = options.check_lanes
        self.lane_server = None if isinstance(lanes, str) else lanes
        self._mps = Mps(options.mps, gpu.facts.uuid)
        self._watch = GpuMonitor(gpu, self._look)
        self._utilisations: dict[str, float] = {}
        #: of the users who had sessions at the last start
        self._shares: dict[str, float] = {}
        self._control: SessionControl
        self._overuse: Overuse
        self._ungranted: Ungranted

    async def start(self, runtime_directory: Path, control: SessionControl) -> None:
        """Try it, start to watch it, and start MPS if that is wanted.

        Raises
        ------
        ConfigError
            When MPS is required and does not start.
        """
        await self._try_out(runtime_directory)
        self._control = control
        self._overuse = Overuse(self.device, control, self._options.overuse_patience)
        self._ungranted = Ungranted(control)
        await self._mps.start(runtime_directory)
        self._watch.start()

    async def _try_out(self, runtime_directory: Path) -> None:
        """Use the best mode that the self-test finds to work; sessions that are there already keep theirs."""
        if self._self_test is None:
            return
        # With their memory on the device much would fail. Where spares alone are left, their parent is.
        has_sessions = False
        try:
            with contextlib.suppress(FileNotFoundError):
                has_sessions = any(SessionRecords(runtime_directory / RECORDS_DIRECTORY).living())
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                has_sessions = has_sessions or listener_of(runtime_directory / WARM_PARENT_SOCKET) > 0
        except OSError as error:
            log.warning("cannot see whether sessions are on the GPU (%s); it is tried as if there were", error.strerror)
            has_sessions = True
        trying = self.try_out(runtime_directory / _RESULTS, trusts_own=has_sessions)
        self._trying = asyncio.ensure_future(trying)
        await asyncio.wait([self._trying])
        if self._trying.cancelled():
            self.memory_mode, self._self_test_note = DeviceMemoryMode.PLAIN, "the self-test was cut short."
            return
        verdict = self._trying.result()
        self.memory_mode, self._self_test_note = verdict.mode, verdict.sentence
        for note in verdict.notes:
            log.warning("%s", note)
        log.log(logging.INFO if verdict.is_whole else logging.WARNING, "%s", verdict.sentence)
        if not verdict.is_whole and self.memory_mode is not DeviceMemoryMode.SHARED:
            self._unshared = verdict.sentence
            if self.lane_server is not None:
                self.lane_server.is_off = True

    async def try_out(self, own: Path | None = None, *, trusts_own: bool = False) -> Verdict:
        """Run the self-test.

        Parameters
        ----------
        own
            File that is to have the results.
        trusts_own
            Whether the results there are trusted.

        Raises
        ------
        ConfigError
            When there is none for this device.
        """
        if self._self_test is None:
            raise ConfigError("there is no self-test for this device.")
        return await self._self_test.run(
            self.memory_mode, why_not_better=(self._unshared or "").rstrip("."), own=own, trusts_own=trusts_own
        )

    def hurry(self) -> None:
        """End the self-test: no session will need what it finds."""
        if self._trying is not None:
            self._trying.cancel()

    async def stop(self, *, end_sessions: bool) -> None:
        """Look no more; MPS ends with its last clients, the sessions."""
        self._watch.stop()
        await self._mps.stop(end_sessions=end_sessions)

    # --- who may start, and how ---------------------------------------------------------------------------------------

    def trust_domain(self, limits: Limits) -> str:
        """Return the domain of a user's sessions; where no bytes are shared there is only one."""
        return "unshared" if self._unshared is not None else self._domain(limits)

    def _domain(self, limits: Limits) -> str:
        match self._options.lane_sharing:
            case LaneSharing.ALL:
                return "all"
            case LaneSharing.GROUP if limits.group is not None:
                return f"group {limits.group}"
            case _:
                return f"user {limits.user}"

    def check_start(self, limits: Limits, others: Iterable[SessionHandle]) -> None:
        """Refuse while the GPU is gone, and who may not share an MPS server with those who are there."""
        if self._watch.lost is not None:
            raise Refused(f"no session can start: {self._watch.lost}", reason="device_lost")
        known = [other.limits for other in others if other.limits is not None]
        self._shares = {other.user: other.share for other in [*known, limits]}
        if self._mps.is_on and any(self._domain(other) != self._domain(limits) for other in known):
            raise Refused(
                "the device runs under MPS, where one session's fault reaches all, and is in use by somebody outside "
                "your group of trust; try again when their sessions have ended.",
                reason="mps",
                retry_after=60.0,
            )

    def environment(self, limits: Limits) -> dict[str, str]:
        """Return which GPU it is, and what makes the session a client of MPS; read when it makes its context."""
        part = None
        if self._options.parallel_lanes > 1:
            shares = {**self._shares, limits.user: limits.share}.values()
            part = limits.share * len(shares) / (sum(shares) or 1.0) / self._options.parallel_lanes
        return {**visibility(self._gpu.facts), **self._mps.environment(quota_of(limits, self.device), part)}

    # --- memory -------------------------------------------------------------------------------------------------------

    def _notify(self, session: SessionHandle, allowance: Allowance) -> None:
        sent = session.sent_allowance
        if is_worth_telling(sent, allowance, allowance.limit_bytes - (sent.limit_bytes if sent is not None else 0)):
            session.sent_allowance = allowance
            session.send(allowance)

    # --- what is seen from outside ------------------------------------------------------------------------------------

    def seen_bytes(self, process: SessionHandle) -> int:
        """Return the GPU's memory: what NVML sees of a process is too old to judge its words by."""
        return self.device.capacity_bytes

    def utilisation(self, process: SessionHandle, reported: float | None) -> float | None:
        """Return, once, how busy NVML saw the GPU while this session alone held it (0 to 1); a report is no measure."""
        return self._utilisations.pop(process.process, None)

    def _look(self, sample: GpuSample) -> None:
        sessions = list(self._control.sessions())
        holding = [process for process in sessions if process.page.words[Word.TURN] == Turn.HOLDING]
        if sample.utilisation is not None and len(holding) == 1 and not self._gpu.facts.is_instance:
            self._utilisations[holding[0].process] = sample.utilisation
        for gone in self._utilisations.keys() - {process.process for process in sessions}:
            del self._utilisations[gone]
        if sample.processes is not None:
            self._overuse.look(sessions, sample.processes, asyncio.get_running_loop().time())
        programs, used = find_programs(sessions, sample, under_mps=self._mps.is_on)
        for process in sessions:
            self._control.list_programs(process, programs.get(process.process, ()))
        if sample.busy is not None:
            self._ungranted.look(sessions, used)

    # --- status -------------------------------------------------------------------------------------------------------

    def details(self) -> DeviceDetails:
        """Return what is shared, what runs beside, and what NVML sees."""
        sample = self._watch.latest
        if self._watch.lost is not None:
            nvml, note = "lost", self._watch.lost
        elif self._watch.trouble is not None:
            nvml, note = "failing", self._watch.trouble
        elif sample is not None and sample.processes is None:
            nvml = "totals"
            note = "NVML tells no processes apart here; what they use outside PyTorch, or their turns, is not watched."
        else:
            nvml, note = "ok", None
        if self._gpu.facts.is_instance and nvml in ("ok", "totals"):
            note = f"{note} {_OF_INSTANCES}" if note else _OF_INSTANCES
        return DeviceDetails(
            uuid=self._gpu.facts.uuid,
            driver_version=self._gpu.facts.driver_version,
            memory_mode=str(self.memory_mode),
            self_test=self._self_test_note,
            lanes_shared=self.memory_mode is DeviceMemoryMode.SHARED,
            shared_units_bytes=0 if self.lane_server is None else self.lane_server.used_bytes,
            lanes_shared_reason=self._unshared or f"lanes are shared within one {self._options.lane_sharing}.",
            mps="on" if self._mps.is_on else "off",
            mps_note=self._mps.note,
            utilisation=None if sample is None else sample.utilisation,
            temperature_celsius=None if sample is None else sample.temperature_celsius,
            power_watts=None if sample is None else sample.power_watts,
            power_limit_watts=None if sample is None else sample.power_limit_watts,
            physical_used_bytes=None if sample is None else sample.used_bytes,
            nvml=nvml,
            nvml_note=note,
        )
