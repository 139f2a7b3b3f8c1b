"""A GPU as the executor serves it: what is offered, to whom, and how a session is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.errors import ConfigError, Refused
from sharedkernel.executor.devices.cuda.device import CudaDevice, CudaOptions, LaneSharing
from sharedkernel.executor.devices.cuda.discovery import describe, named_device, why_unshared
from sharedkernel.executor.devices.cuda.mps import MpsMode
from sharedkernel.executor.devices.lane_server import LaneServer
from sharedkernel.executor.devices.leases import UserMemory
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.protocol import Device, Limits
from sharedkernel.selftest.runner import Identity, SelfTest
from sharedkernel.selftest.steps import STEPS, Outcome, StepResult, Verdict, judge
from sharedkernel.system.nvml import Gpu, GpuFacts
from tests.device_memory.fake_cuda import FakeCuda, Result
from tests.device_memory.memfd import MemfdDriver
from tests.device_memory.support import open_descriptors
from tests.executor.devices.support import GIB, Recorder, make_process
from tests.executor.harness import until
from tests.fake_nvml import FakeGpu, FakeNvml
from tests.status.documents import to_json

FACTS = GpuFacts(name="NVIDIA H200", uuid="GPU-1", total_bytes=140 * GIB, driver_version="580.65.06")
ADA, GRACE, ALAN = Limits(user="ada", group="lab"), Limits(user="grace", group="lab"), Limits(user="alan")


def test_all_of_a_gpu_is_offered_but_a_reserve() -> None:
    """Two percent, and 512 MiB at least."""
    assert describe(FACTS, None, None) == Device(
        name="NVIDIA H200", kind="cuda", capacity_bytes=140 * GIB, reserve_bytes=int(140 * GIB * 0.02)
    )
    assert describe(FACTS, 8 * GIB, None).reserve_bytes == 512 << 20
    assert describe(FACTS, 8 * GIB, 0).reserve_bytes == 0


@pytest.mark.parametrize(("capacity", "reserve"), [(141 * GIB, None), (GIB, GIB), (512 << 20, None)])
def test_more_than_there_is_cannot_be_offered(capacity: int, reserve: int | None) -> None:
    """Nor a reserve that leaves nothing."""
    with pytest.raises(ConfigError, match="--capacity"):
        describe(FACTS, capacity, reserve)


@pytest.mark.parametrize(
    ("name", "visible", "expected"),
    [
        ("cuda", None, "cuda"),
        ("cuda:1", "GPU-7, GPU-8", "GPU-8"),
        ("cuda:1", "3,2", "cuda:2"),
        ("cuda:0:1", None, "cuda:0:1"),
        ("cuda:0:1", "GPU-7", "GPU-7:1"),
        ("cuda", "MIG-1", "MIG-1"),
        ("MIG-2", "MIG-1", "MIG-2"),
    ],
)
def test_devices_are_counted_as_the_environment_shows_them(name: str, visible: str | None, expected: str) -> None:
    """A scheduler of the cluster may have shown this executor only some of the GPUs."""
    assert named_device(name, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == expected


@pytest.mark.parametrize(
    ("name", "visible"), [("cuda:1", "GPU-7"), ("cuda", ""), ("cuda", "-1"), ("cuda:1:0", "GPU-7")]
)
def test_a_device_that_is_not_shown_is_not_taken(name: str, visible: str) -> None:
    """The variable is named, since it is what to change."""
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        named_device(name, {"CUDA_VISIBLE_DEVICES": visible})


def test_a_build_of_torch_is_taken_at_its_word_and_not_imported(tmp_path: Path) -> None:
    """The executor reads what the package says of itself; one without CUDA is refused."""
    code = """if True:
        import sys
        sys.path[:0] = sys.argv[1:]
        from sharedkernel.errors import ConfigError
        from sharedkernel.executor.devices.cuda.discovery import check_torch
        try:
            check_torch()
        except ConfigError as error:
            print(error)
        assert "torch" not in sys.modules
    """
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: str | None = '13.0'\n")
    own, other = (
        subprocess.run([sys.executable, "-c", code, *path], capture_output=True, text=True, check=True).stdout
        for path in ([], [str(tmp_path)])
    )
    import torch

    assert ("built without CUDA" in own) is (torch.version.cuda is None)
    assert other == ""


def test_memory_that_can_be_shared_is_created_and_exported_once() -> None:
    """Nothing is left of the attempt."""
    cuda, before = FakeCuda(), open_descriptors()
    assert why_unshared(cuda) is None
    assert cuda.calls.count("cuMemExportToShareableHandle") == 1
    assert open_descriptors() == before


@pytest.mark.parametrize("call", ["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"])
def test_where_memory_cannot_be_shared_it_says_why(call: str) -> None:
    """Sessions are served all the same, with ephemeral memory of their own."""
    cuda, before = FakeCuda(), open_descriptors()
    cuda.answers[call] = Result.CUDA_ERROR_NOT_SUPPORTED
    reason = why_unshared(cuda)
    assert reason is not None
    assert call in reason
    assert "given back at a switch" in reason
    assert open_descriptors() == before


def test_a_driver_library_without_the_calls_cannot_share() -> None:
    """Old drivers lack them; the bindings say so by an exception."""
    cuda = FakeCuda()
    cuda.cuMemCreate = Mock(side_effect=RuntimeError('Function "cuMemCreate" not found'))
    assert "not found" in (why_unshared(cuda) or "")


# --- a device in service --------------------------------------------------------------------------------------------


def make_device(
    fake: FakeGpu | None = None,
    *,
    lanes: LaneServer | str | None = None,
    self_test: SelfTest | None = None,
    **options: Any,
) -> CudaDevice:
    fake = fake or FakeGpu(uuid="GPU-1")
    gpu = Gpu("cuda:0:0" if fake.mig else "cuda:0", library=FakeNvml(fake), host_pids=True)
    device = describe(gpu.facts, None, 0)
    desk = LaneServer(LaneStore(MemfdDriver()))
    return CudaDevice(gpu, device, CudaOptions(**options), lanes=lanes or desk, self_test=self_test)


@pytest.mark.parametrize(
    ("sharing", "shared"),
    [(LaneSharing.USER, set()), (LaneSharing.GROUP, {"grace"}), (LaneSharing.ALL, {"grace", "alan"})],
)
def test_lanes_are_shared_within_a_trust_domain(sharing: LaneSharing, shared: set[str]) -> None:
    """Who has no group shares with nobody; groups and users of one name are two things."""
    device = make_device(lane_sharing=sharing)
    with_ada = {other.user for other in (GRACE, ALAN) if device.trust_domain(other) == device.trust_domain(ADA)}
    assert with_ada == shared
    impostor = Limits(user="lab")
    assert (device.trust_domain(impostor) == device.trust_domain(ADA)) is (sharing is LaneSharing.ALL)


def test_a_session_sees_one_gpu_by_its_uuid() -> None:
    """Whatever number it has on the host."""
    assert make_device().environment(ADA) == {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


async def test_a_mig_instance_is_a_device_of_its_own(tmp_path: Path) -> None:
    """Sessions see it by its UUID; the status says what is off, as NVML has no figures for it, and its utilisation."""
    instance = FakeGpu(uuid="MIG-1", name="NVIDIA H200 MIG 1g.18gb", total=18 * GIB, reserved=0, percent=80, use=None)
    device = make_device(FakeGpu(uuid="GPU-1", mig=True, instances={0: instance}))
    assert (device.device.name, device.device.capacity_bytes) == ("NVIDIA H200 MIG 1g.18gb", 18 * GIB)
    assert device.environment(ADA)["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    note = str(device.details().nvml_note)
    assert "computing without a grant is not charged, and interference is not measured" in note
    assert make_device().details().nvml_note is None
    holder = make_process("p", pid=1)
    holder.page.words[Word.TURN] = Turn.HOLDING
    async with serving(device, Recorder(holder), tmp_path):
        assert await until(lambda: to_json(device.details())["utilisation"], "the instance's use is seen") == 0.8
        assert device.utilisation(holder, None) is None


@asynccontextmanager
async def serving(device: CudaDevice, recorder: Recorder, directory: Path) -> AsyncIterator[None]:
    await device.start(directory, recorder)
    try:
        yield
    finally:
        await device.stop(end_sessions=True)


async def refused(device: CudaDevice, limits: Limits, others: Recorder) -> str | None:
    try:
        device.check_start(limits, others.sessions())
    except Refused as refusal:
        return refusal.reason
    return None


@pytest.mark.heavy
async def test_no_session_starts_on_a_gpu_that_is_gone(tmp_path: Path) -> None:
    """Status says so; when it is back sessions start again."""
    fake, recorder = FakeGpu(), Recorder()
    device = make_device(fake)
    async with serving(device, recorder, tmp_path):
        assert await refused(device, ADA, recorder) is None
        fake.lost = True
        assert await until(lambda: refused(device, ADA, recorder), "the loss is seen") == "device_lost"
        status = to_json(device.details())
        assert status["nvml"] == "lost"
        assert "does not answer" in status["nvml_note"]
        fake.lost = False

        async def is_back() -> bool:
            return await refused(device, ADA, recorder) is None

        await until(is_back, "it is back")
        assert device.details().nvml == "ok"


async def test_utilisation_is_told_of_who_holds_the_gpu_alone(tmp_path: Path) -> None:
    """With two at a time nobody can tell whose it is. Each look counts once, and a session's own word never."""
    fake = FakeGpu(percent=80, used=3 * GIB)

    holder, idle = make_process("p", pid=1), make_process("q", pid=2)
    holder.page.words[Word.TURN] = Turn.HOLDING
    device, recorder = make_device(fake), Recorder(holder, idle)
    async with serving(device, recorder, tmp_path):
        assert await until(lambda: device.utilisation(holder, 0.1), "the GPU's use is seen") == 0.8
        assert device.utilisation(holder, 0.1) is None
        assert device.utilisation(idle, 0.1) is None
        status = to_json(device.details())
        assert (status["utilisation"], status["physical_used_bytes"]) == (0.8, 3 * GIB)
        assert (status["temperature_celsius"], status["power_watts"], status["power_limit_watts"]) == (41, 58.3, 72)


async def test_allowances_are_told_when_they_change() -> None:
    """A session's limit is torch's own, set in its process: no limit is set from outside."""
    device, process = make_device(), make_process(limits=Limits(user="ada", quota_bytes=8 * GIB))
    process.transport = sent = Mock(get_write_buffer_size=lambda: 0)
    for _ in range(2):
        device.update([UserMemory(user="ada", sessions=[process], shelf=0)])
    sent.write.assert_called_once()
    assert process.sent_allowance is not None
    assert process.sent_allowance.limit_bytes == 8 * GIB


# --- MPS ------------------------------------------------------------------------------------------------------------


async def test_of_an_mps_server_each_has_a_part_and_strangers_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client's fault reaches all: only one trust domain at a time. With two lanes an average share is half."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\ncat > /dev/null\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    device, present = make_device(mps=MpsMode.REQUIRE, parallel_lanes=2), Recorder(make_process(limits=ADA))
    async with serving(device, present, tmp_path):
        assert await refused(device, GRACE, present) is None
        assert await refused(device, ALAN, present) == "mps"
        assert await refused(device, ALAN, Recorder()) is None
        status = to_json(device.details())
        assert status["mps"] == "on"
        assert "fatal fault" in status["mps_note"]
        heavy = Limits(user="grace", group="lab", share=3.0)
        device.check_start(heavy, present.sessions())
        percent = {
            limits.user: device.environment(limits)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for limits in (ADA, heavy)
        }
        assert percent == {"ada": "25", "grace": "75"}


# --- the self-test --------------------------------------------------------------------------------------------------


class FakeSelfTest(SelfTest):
    """Finds what a test wants."""

    def __init__(self, *failures: str) -> None:
        super().__init__(Identity(driver="1", torch="2", card="c", uuid="GPU-1"))
        self._failures = failures
        self.asked: list[dict[str, Any]] = []

    async def run(self, best: DeviceMemoryMode, **options: Any) -> Verdict:
        self.asked.append({"best": best, **options})
        outcomes = {name: Outcome.FAILED for name in self._failures}
        return judge(
            [StepResult(step=step.name, outcome=outcomes.get(step.name, Outcome.PASSED), why="why") for step in STEPS],
            best,
            notes=["a note."],
        )


@pytest.mark.parametrize(
    ("failures", "mode"),
    [((), DeviceMemoryMode.SHARED), (("offload",), DeviceMemoryMode.PRIVATE), (("peaks",), DeviceMemoryMode.PLAIN)],
)
async def test_what_the_self_test_finds_broken_is_switched_off(
    failures: tuple[str, ...], mode: DeviceMemoryMode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first session, with one sentence in the log and in status; sessions of before still get memory."""
    device = make_device(self_test=FakeSelfTest(*failures))
    with caplog.at_level("INFO"):
        async with serving(device, Recorder(), tmp_path):
            pass
    assert device.memory_mode is mode
    status = to_json(device.details())
    assert status["memory_mode"] == mode
    assert status["lanes_shared"] is (mode is DeviceMemoryMode.SHARED)
    assert caplog.text.count(status["self_test"]) == 1
    assert "a note." in caplog.text
    assert device.lane_server is not None
    assert device.lane_server.is_off is (mode is not DeviceMemoryMode.SHARED)
    if failures:
        assert status["lanes_shared_reason"] == status["self_test"]
        assert device.trust_domain(ADA) == device.trust_domain(ALAN)


async def test_an_executor_that_is_to_end_does_not_wait_for_its_self_test(tmp_path: Path) -> None:
    """Whose process is killed; nothing is recorded as passed."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o700)
    identity = Identity(driver="1", torch="2", card="c", uuid="GPU-1")
    device = make_device(self_test=SelfTest(identity, python=str(python)))

    asyncio.get_running_loop().call_later(0.5, device.hurry)
    async with asyncio.timeout(30):
        await device.start(tmp_path, Recorder())
    device.hurry()
    await device.stop(end_sessions=True)
    assert device.details().self_test == "the self-test was cut short."
    assert not (tmp_path / "self-test.json").exists()


async def test_lanes_are_not_tried_where_the_driver_has_none(tmp_path: Path) -> None:
    """Nor are results trusted of a runtime directory without sessions."""
    self_test = FakeSelfTest()
    device = make_device(lanes="the driver is too old.", self_test=self_test)
    async with serving(device, Recorder(), tmp_path):
        pass
    assert device.memory_mode is DeviceMemoryMode.PRIVATE
    assert self_test.asked == [
        {
            "best": DeviceMemoryMode.PRIVATE,
            "why_not_better": "the driver is too old",
            "own": tmp_path / "self-test.json",
            "trusts_own": False,
        }
    ]
    assert device.details().lanes_shared_reason == "the driver is too old."
