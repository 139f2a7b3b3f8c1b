"""What is understood of NVML's answers, and what is said of its errors."""

from __future__ import annotations

import os
import time

import pynvml
import pytest

from sharedkernel.system.nvml import Gpu, GpuLost, NvmlUnavailable, list_gpus, visible_gpus
from tests.fake_nvml import GIB, FakeGpu, FakeNvml


def test_a_gpu_is_described_without_what_the_driver_keeps() -> None:
    """Name, UUID and driver as they are; memory as programs can have it."""
    facts = Gpu("cuda", library=FakeNvml(FakeGpu())).facts
    assert (facts.name, facts.driver_version) == ("NVIDIA H200", "580.65.06")
    assert facts.uuid.startswith("GPU-")
    assert facts.total_bytes == 140 * GIB


def test_gpus_are_listed_and_none_without_a_driver() -> None:
    """A driver that is there and does not work is another matter."""
    library = FakeNvml(FakeGpu(), FakeGpu())
    assert list_gpus(library=library) == ["cuda:0", "cuda:1"]
    assert library.opened == 0
    assert list_gpus(library=FakeNvml(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)) == []
    with pytest.raises(NvmlUnavailable, match="installed but not loaded"):
        list_gpus(library=FakeNvml(init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED))


def test_sensors_are_read_where_there_are_some() -> None:
    """Passively cooled and virtual GPUs lack some; the others' figures are not lost for that."""
    sample = Gpu("cuda:0", library=FakeNvml(FakeGpu())).sample()
    assert (sample.temperature_celsius, sample.power_watts, sample.power_limit_watts) == (41.0, 58.3, 72.0)
    sample = Gpu("cuda:0", library=FakeNvml(FakeGpu(temperature=None, power_limit=None))).sample()
    assert (sample.temperature_celsius, sample.power_watts, sample.power_limit_watts) == (None, 58.3, None)


def test_older_drivers_give_totals_alone() -> None:
    """Where the driver's own part is not told apart, and names come as bytes, that is good enough."""
    library = FakeNvml(FakeGpu(has_second_version=False, name=b"Tesla V100", mig=None))
    facts = Gpu("cuda:0", library=library).facts
    assert (facts.name, facts.total_bytes) == ("Tesla V100", 141 * GIB)


def test_devices_are_found_by_number_and_by_uuid() -> None:
    """Numbers are those of `nvidia-smi`."""
    second = FakeGpu(uuid="GPU-2", name="second")
    library = FakeNvml(FakeGpu(), second)
    assert Gpu("cuda:1", library=library).facts.name == "second"
    assert Gpu("GPU-2", library=library).facts.name == "second"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "restart the machine"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "--gpus all"),
    ],
)
def test_what_keeps_nvml_from_starting_is_one_sentence(code: int, words: str) -> None:
    """It says what is wrong and what to do."""
    with pytest.raises(NvmlUnavailable, match=words) as caught:
        Gpu("cuda:0", library=FakeNvml(FakeGpu(), init_error=code))
    assert str(caught.value).count(". ") == 0
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("name", "gpus", "words"),
    [
        ("cuda:0", [], "shows no GPU"),
        ("cuda:1", [FakeGpu()], "those known is cuda:0"),
        ("cuda:7", [FakeGpu(), FakeGpu()], "cuda:0 to cuda:1"),
        ("GPU-other", [FakeGpu()], "no such GPU"),
        ("cuda:0", [FakeGpu(mig=True)], r"partitioned \(MIG\); name one of its instances \(none yet"),
        ("cuda:0", [FakeGpu(mig=True, instances={0: FakeGpu(), 2: FakeGpu()})], "cuda:0:0, cuda:0:2"),
        ("cuda:0:1", [FakeGpu(mig=True, instances={0: FakeGpu()})], "no MIG instance 1 of cuda:0"),
        ("MIG-other", [FakeGpu(mig=True)], "no such GPU"),
        ("cuda:one", [FakeGpu()], "no device 'cuda:one'"),
    ],
)
def test_what_cannot_be_served_is_one_sentence_and_lets_go(name: str, gpus: list[FakeGpu], words: str) -> None:
    """The library is closed again when there is nothing for it to do."""
    library = FakeNvml(*gpus)
    with pytest.raises(NvmlUnavailable, match=words):
        Gpu(name, library=library)
    assert library.opened == 0


def test_a_sample_has_all_processes() -> None:
    """Clients of MPS are listed apart, and some of them twice."""
    gpu = FakeGpu(used=5 * GIB, percent=42, processes={7: GIB, 8: 2 * GIB}, mps_processes={8: 2 * GIB, 9: 3})
    sample = Gpu("cuda:0", library=FakeNvml(gpu), host_pids=True).sample()
    assert (sample.used_bytes, sample.free_bytes, sample.utilisation) == (5 * GIB, 135 * GIB, 0.42)
    assert sample.processes == {7: GIB, 8: 2 * GIB, 9: 3}


@pytest.mark.parametrize(("host_pids", "used"), [(False, GIB), (True, None)])
def test_processes_are_untold_where_their_numbers_are_foreign_or_have_no_figures(
    host_pids: bool, used: int | None
) -> None:
    """A number of the host's that happens to be one of ours must accuse nobody."""
    gpu = Gpu("cuda:0", library=FakeNvml(FakeGpu(processes={os.getpid(): used})), host_pids=host_pids)
    assert gpu.sample().processes is None


def test_a_lost_gpu_says_so_and_is_found_again() -> None:
    """Its handle is of no use any more: it is looked for by its UUID."""
    fake = FakeGpu()
    library = FakeNvml(fake)
    gpu = Gpu("cuda:0", library=library)
    fake.lost = True
    with pytest.raises(GpuLost):
        gpu.sample()
    with pytest.raises(GpuLost):
        gpu.reopen()
    library.gpus = [FakeGpu(uuid="GPU-9"), FakeGpu(used=GIB)]
    gpu.reopen()
    assert gpu.sample().used_bytes == GIB
    assert library.opened == 1


@pytest.mark.parametrize("is_blackwell", [False, True])
def test_use_is_told_by_process_from_the_second_look_on(is_blackwell: bool) -> None:
    """In seconds since the look before; what no GPU can do is left out."""
    fake = FakeGpu(use=[])
    assert fake.use is not None
    gpu = Gpu("cuda:0", library=FakeNvml(fake, is_blackwell=is_blackwell), host_pids=True)
    second = 1_000_000
    start = time.time_ns() // 1000
    fake.use += [(7, start + second, 100)]
    assert gpu.sample().busy is None
    fake.use += [(7, start + 2 * second, 50), (8, start + 2 * second, 100), (9, start + 2 * second, 4711)]
    assert gpu.sample().busy == {7: 0.5, 8: 1.0}
    fake.use += [(8, start + int(2.5 * second), 100), (8, start + 3 * second, 40)]
    assert gpu.sample().busy == {8: pytest.approx(0.7)}
    assert gpu.sample().busy == {}


def test_long_idleness_is_not_counted_as_use() -> None:
    """NVML says how busy a process was lately, and not since when."""
    fake = FakeGpu(use=[])
    assert fake.use is not None
    gpu = Gpu("cuda:0", library=FakeNvml(fake), host_pids=True)
    assert gpu.sample().busy is None
    fake.use.append((7, time.time_ns() // 1000 + 60_000_000, 100))
    assert gpu.sample().busy == {7: 2.0}


@pytest.mark.parametrize(("host_pids", "use"), [(False, []), (True, None)])
def test_use_is_untold_where_processes_are(host_pids: bool, use: list[tuple[int, int, int]] | None) -> None:
    """Nobody is charged there."""
    gpu = Gpu("cuda:0", library=FakeNvml(FakeGpu(use=use)), host_pids=host_pids)
    assert gpu.sample().busy is None
    assert gpu.sample().busy is None


def _instance(number: int) -> FakeGpu:
    """Return a MIG instance, which has no sensors and no figures of processes' use."""
    return FakeGpu(
        uuid=f"MIG-{number}", name="NVIDIA H200 MIG 1g.18gb", total=18 * GIB, used=number * GIB, percent=40 + number,
        temperature=None, power=None, power_limit=None, use=None, processes={7: GIB},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["cuda:0:2", "MIG-2", "GPU-1:2"])
def test_a_mig_instance_has_its_own_memory_processes_and_utilisation(name: str) -> None:
    """The temperature is its GPU's; NVML has neither its power nor the use of it by process."""
    library = FakeNvml(FakeGpu(uuid="GPU-1", mig=True, percent=99, instances={0: _instance(0), 2: _instance(2)}))
    gpu = Gpu(name, library=library, host_pids=True)
    assert gpu.facts.is_instance
    assert (gpu.facts.uuid, gpu.facts.total_bytes) == ("MIG-2", 17 * GIB)
    assert gpu.sample().utilisation is None
    sample = gpu.sample()
    assert (sample.used_bytes, sample.processes, sample.utilisation) == (2 * GIB, {7: GIB}, 0.42)
    assert (sample.temperature_celsius, sample.power_watts, sample.busy) == (41.0, None, None)
    assert len(library.samples) == 1
    assert not Gpu("cuda:0", library=FakeNvml(FakeGpu())).facts.is_instance


def test_before_hopper_a_mig_instance_has_no_utilisation() -> None:
    """And nothing is kept of the attempts."""
    library = FakeNvml(FakeGpu(mig=True, instances={0: _instance(0)}))
    library.has_no_gpm = True
    gpu = Gpu("cuda:0:0", library=library)
    assert [gpu.sample().utilisation for _ in range(3)] == [None] * 3
    assert library.samples == []


def test_a_gpu_in_mig_mode_is_listed_by_its_instances() -> None:
    """Their numbers may have gaps."""
    library = FakeNvml(FakeGpu(mig=True, instances={0: _instance(0), 2: _instance(2)}), FakeGpu(uuid="GPU-2"))
    assert list_gpus(library=library) == ["cuda:0:0", "cuda:0:2", "cuda:1"]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("", []),
        ("-1", []),
        ("3", ["cuda:0"]),
        ("GPU-5ad1f0c2, 1", ["cuda:0", "cuda:1"]),
        ("0,-1,1", ["cuda:0"]),
    ],
)
def test_gpus_are_those_that_cuda_shows(visible: str, names: list[str]) -> None:
    """Their numbers are those within `CUDA_VISIBLE_DEVICES`."""
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": visible}) == names
