"""The figures of NVML (the driver's management library) for one NVIDIA GPU or MIG instance, without a CUDA context.

Device totals can be had wherever the library works. Figures *per process* often cannot: in a container the driver
names processes as the host numbers them, or none at all. A number that happens to be one of ours would then be taken
for a session, so they are used only where this process is numbered as the host does it (:func:`sees_host_pids`).

A MIG instance has its own memory, processes and, from Hopper on, utilisation. NVML reports no use of it by process.

Everything else here turns the library's errors into one sentence each.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sharedkernel.distribution import install_hint
from sharedkernel.errors import SharedKernelError

#: inode of the namespace in which the host numbers its processes, the same on every Linux (PROC_PID_INIT_INO)
_HOST_PID_NAMESPACE = 0xEFFFFFFC

#: how UUIDs of GPUs and of MIG instances begin
UUIDS = ("GPU-", "MIG-")
#: NVML_TEMPERATURE_GPU
_TEMPERATURE_GPU = 0
_NAME = re.compile(r"cuda(?::([0-9]+)(?::([0-9]+))?)?")

#: microseconds that one of NVML's figures of a process's use is taken to be about at most: it looks each second
_LONGEST_USE = 2_000_000


class NvmlUnavailable(SharedKernelError):
    """NVML cannot be used, or not for this device: the sentence says why and what to do."""

    reason = "nvml"


class GpuLost(NvmlUnavailable):
    """The device was there and is no more."""

    reason = "device_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The constant properties of one GPU or MIG instance."""

    name: str
    uuid: str
    #: memory that programs can have, in bytes: without what the driver keeps for itself
    total_bytes: int
    driver_version: str
    #: a MIG instance, which is a part of a GPU
    is_instance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One look at a GPU."""

    used_bytes: int
    free_bytes: int
    #: part of the last sample period in which a CUDA kernel ran (0 to 1); None where the GPU does not say
    utilisation: float | None
    temperature_celsius: float | None
    #: what it draws, and the most that it may; None where the GPU does not say, as the temperature
    power_watts: float | None
    power_limit_watts: float | None
    #: bytes by process id; None where they cannot be told
    processes: dict[int, int] | None
    #: seconds in which each process's CUDA kernels ran since the look before; None at the first one, and where it
    #: cannot be told
    busy: dict[int, float] | None
    #: ids of the processes that use another GPU of this machine
    elsewhere: frozenset[int] = frozenset()


def sees_host_pids() -> bool:
    """Whether process ids mean the same here as on the host."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino == _HOST_PID_NAMESPACE
    return False


class Gpu:
    """One GPU or MIG instance as NVML sees it.

    Parameters
    ----------
    name
        ``"cuda"``, ``"cuda:N"``, or ``"cuda:N:M"`` for MIG instance M of that GPU (numbered as ``nvidia-smi -L`` does);
        or a UUID as ``CUDA_VISIBLE_DEVICES`` has them.
    library
        The module `pynvml`, or what stands in for it.
    host_pids
        Whether processes are numbered here as NVML numbers them.

    Raises
    ------
    NvmlUnavailable
        When there is no driver, no such device, or nothing to be seen of it.
    """

    def __init__(self, name: str = "cuda:0", *, library: Any = None, host_pids: bool | None = None) -> None:
        self._nvml = _load() if library is None else library
        self._host_pids = sees_host_pids() if host_pids is None else host_pids
        self._handle: Any = None
        #: of a MIG instance: its GPU and its number there, and what was sampled of its use at the last look
        self._card: Any = None
        self._instance = 0
        self._use_sample: Any = None
        #: microseconds since the epoch up to which processes' use has been read; 0 before the first look
        self._read_until = 0
        self.facts = self._open(name)

    def reopen(self) -> None:
        """Look for the same GPU anew, after it was lost.

        Raises
        ------
        NvmlUnavailable
            While it is not back.
        """
        self.close()
        self._open(self.facts.uuid)

    def close(self) -> None:
        """Shut the library down."""
        self._use_sample = None  # the library's own
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def sample(self) -> GpuSample:
        """Look at the GPU (about a millisecond).

        Raises
        ------
        GpuLost
            When it is gone.
        NvmlUnavailable
            When it does not answer this time.
        """
        with self._errors_as_sentences():
            memory = self._memory()
        return GpuSample(
            used_bytes=int(memory.used),
            free_bytes=int(memory.free),
            utilisation=self._utilisation(),
            # a MIG instance is as hot as its GPU; what it draws of the GPU's power nobody measures
            temperature_celsius=self._read("nvmlDeviceGetTemperature", _TEMPERATURE_GPU, of=self._card),
            power_watts=self._read("nvmlDeviceGetPowerUsage", unit=1000),
            power_limit_watts=self._read("nvmlDeviceGetEnforcedPowerLimit", unit=1000),
            processes=self._processes(),
            busy=self._busy(),
            elsewhere=self._elsewhere(),
        )

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> GpuFacts:
        with self._errors_as_sentences():
            self._nvml.nvmlInit()
        try:
            self._handle = self._find(name)
            return self._describe()
        except BaseException:
            self.close()
            raise

    def _find(self, name: str) -> Any:
        with self._errors_as_sentences():
            count = self._nvml.nvmlDeviceGetCount()
            if not count:
                raise NvmlUnavailable(
                    "the NVIDIA driver is there but shows no GPU; in a container, start it with the GPU "
                    "(such as `--gpus all`)."
                )
            if name.startswith(UUIDS):
                uuid, _, instance = name.partition(":")
                handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            else:
                index, instance = device_numbers(name)
                if index >= count:
                    known = "is cuda:0" if count == 1 else f"are cuda:0 to cuda:{count - 1}"
                    raise NvmlUnavailable(f"there is no device {name!r}; those known {known}.")
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            if not instance and not is_partitioned(handle, self._nvml):
                return handle
            return self._find_instance(handle, name, instance)

    def _find_instance(self, card: Any, name: str, instance: str) -> Any:
        found = instances(card, self._nvml)
        if instance and int(instance) in found:
            return found[int(instance)]
        name = name.removesuffix(f":{instance}")
        known = ", ".join(f"{name}:{number}" for number in found) or "none yet: `nvidia-smi mig -cgi … -C` makes some"
        what = f"there is no MIG instance {instance} of {name}" if instance else f"{name} is partitioned (MIG)"
        raise NvmlUnavailable(f"{what}; name one of its instances ({known}), or its UUID from `nvidia-smi -L`.")

    def _describe(self) -> GpuFacts:
        nvml = self._nvml
        with self._errors_as_sentences():
            self._card = None
            with contextlib.suppress(nvml.NVMLError, AttributeError):  # drivers without MIG lack the call
                if nvml.nvmlDeviceIsMigDeviceHandle(self._handle):
                    self._instance = nvml.nvmlDeviceGetGpuInstanceId(self._handle)
                    self._card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)
            memory = self._memory()
            return GpuFacts(
                name=_text(nvml.nvmlDeviceGetName(self._handle)),
                uuid=_text(nvml.nvmlDeviceGetUUID(self._handle)),
                total_bytes=int(memory.total) - int(getattr(memory, "reserved", 0)),
                driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
                is_instance=self._card is not None,
            )

    # --- looking ------------------------------------------------------------------------------------------------------

    def _memory(self) -> Any:
        """Return total, free and used bytes; with the driver's own part (`reserved`) where it tells that apart."""
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return nvml.nvmlDeviceGetMemoryInfo(self._handle, version=nvml.nvmlMemory_v2)
        return nvml.nvmlDeviceGetMemoryInfo(self._handle)

    def _utilisation(self) -> float | None:
        if self._card is not None:
            return self._instance_utilisation()
        with contextlib.suppress(self._nvml.NVMLError):
            return min(1.0, float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100)
        return None

    def _instance_utilisation(self) -> float | None:
        """Return the part of the time since the last look in which a MIG instance computed; None before Hopper."""
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            sample = nvml.nvmlGpmSampleAlloc()
            unused = sample
            try:
                nvml.nvmlGpmMigSampleGet(self._card, self._instance, sample)
                unused, self._use_sample = self._use_sample, sample
                if unused is None:
                    return None
                asked = nvml.c_nvmlGpmMetricsGet_t()
                asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
                asked.sample1, asked.sample2 = unused, sample
                asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_GRAPHICS_UTIL
                metric = nvml.nvmlGpmMetricsGet(asked).metrics[0]
                if metric.nvmlReturn == nvml.NVML_SUCCESS:
                    return min(1.0, float(metric.value) / 100)
            finally:
                if unused is not None:
                    nvml.nvmlGpmSampleFree(unused)
        return None

    def _read(self, name: str, *arguments: Any, of: Any = None, unit: int = 1) -> float | None:
        """Return the figure of NVML's function *name*, *of* another device if named; None where there is none.

        *unit*: how many of the function's units are one of the result's.
        """
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return float(getattr(self._nvml, name)(self._handle if of is None else of, *arguments)) / unit
        return None

    def _processes(self) -> dict[int, int] | None:
        """Return bytes by process, clients of MPS included; None when they cannot be told."""
        if not self._host_pids:
            return None
        found: dict[int, int] = {}
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
            try:
                processes = getattr(self._nvml, name)(self._handle)
            except (self._nvml.NVMLError, AttributeError):
                if not name.startswith("nvmlDeviceGetMPS"):
                    return None
                continue
            for process in processes:
                if process.usedGpuMemory is None:
                    return None
                found[process.pid] = max(found.get(process.pid, 0), int(process.usedGpuMemory))
        return found

    def _elsewhere(self) -> frozenset[int]:
        """Return the ids of the processes on this machine's other GPUs, as far as they can be told."""
        nvml, found = self._nvml, set()
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            for index in range(nvml.nvmlDeviceGetCount() if self._host_pids and self._card is None else 0):
                other = nvml.nvmlDeviceGetHandleByIndex(index)
                if _text(nvml.nvmlDeviceGetUUID(other)) != self.facts.uuid:
                    found |= {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(other)}
        return frozenset(found)

    def _busy(self) -> dict[int, float] | None:
        """Return the seconds each process kept the GPU busy since the last look; None when that cannot be told."""
        since, now = self._read_until, time.time_ns() // 1000
        samples = self._use_since(since or now) if self._host_pids else None
        if samples is None:
            return None
        self._read_until = max((sample.timeStamp for sample in samples), default=max(since, now - _LONGEST_USE))
        if not since:
            return None
        found: dict[int, float] = {}
        read: dict[int, int] = {}
        for sample in sorted(samples, key=lambda sample: sample.timeStamp):
            # Each says what was used since the one before it; some drivers give impossible ones now and then.
            if sample.smUtil <= 100:
                passed = min(max(0, sample.timeStamp - read.get(sample.pid, since)), _LONGEST_USE)
                found[sample.pid] = found.get(sample.pid, 0.0) + passed / 1e6 * sample.smUtil / 100
            read[sample.pid] = sample.timeStamp
        return found

    def _use_since(self, since: int) -> list[Any] | None:
        """Return what NVML has seen of processes after *since*; None where it does not look at them."""
        nvml = self._nvml
        for name in ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"):
            try:
                return list(getattr(nvml, name)(self._handle, since))
            except AttributeError:
                continue
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_NOT_FOUND:  # nobody has used it since
                    return []
        return None

    @contextlib.contextmanager
    def _errors_as_sentences(self) -> Iterator[None]:
        """Raise the library's errors as what they mean."""
        try:
            yield
        except self._nvml.NVMLError as error:
            raise _translated(error, self._nvml) from None


def list_gpus(*, library: Any = None) -> list[str]:
    """Return the names of this machine's NVIDIA GPUs, or of their MIG instances; none where there is no driver.

    Parameters
    ----------
    library
        The module `pynvml`, or what stands in for it.

    Raises
    ------
    NvmlUnavailable
        When there is a driver that does not work.
    """
    nvml = _load() if library is None else library
    names = []
    try:
        nvml.nvmlInit()
        try:
            for number in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                parts = instances(handle, nvml) if is_partitioned(handle, nvml) else None
                names += [f"cuda:{number}"] if parts is None else [f"cuda:{number}:{part}" for part in parts]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return []
        raise _translated(error, nvml) from None
    return names


def is_partitioned(handle: Any, nvml: Any) -> bool:
    """Whether a GPU is in MIG mode; *nvml* is the library that the handle is of."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # GPUs that cannot be, and instances, answer "not supported"
        return False


def instances(card: Any, nvml: Any) -> dict[int, Any]:
    """Return the handles of a GPU's MIG instances by number; *nvml* is the library that the GPU's is of."""
    found = {}
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        with contextlib.suppress(nvml.NVMLError):  # numbers need not follow one another
            found[number] = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, number)
    return found


def _load() -> Any:
    try:
        import pynvml
    except ImportError:
        raise NvmlUnavailable(f"the package nvidia-ml-py is missing; install it with {install_hint('host')}.") from None
    return pynvml


def device_numbers(name: str) -> tuple[int, str]:
    """Return N and M of ``"cuda:N:M"``; 0 for an N, and "" for an M, that are not there.

    Raises
    ------
    NvmlUnavailable
        When *name* is no such name.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise NvmlUnavailable(
            f"there is no device {name!r}; name host, cuda:N with N from `nvidia-smi -L`, or cuda:N:M for its MIG "
            "device M."
        )
    return int(found[1] or 0), found[2] or ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _translated(error: Exception, nvml: Any) -> NvmlUnavailable:
    """Return one sentence that says what *error* of the library *nvml* means, and what to do."""
    code = getattr(error, "value", None)
    if code in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND, nvml.NVML_ERROR_RESET_REQUIRED):
        return GpuLost(
            "the GPU does not answer any more; `dmesg` names the cause, and a reset or a restart of the machine "
            "brings it back."
        )
    sentences = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "there is no NVIDIA driver here (libnvidia-ml.so.1 is missing); install "
        "it, or use --device host.",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded; `nvidia-smi` says why, "
        "or use --device host.",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated and not loaded anew since; restart "
        "the machine.",
        nvml.NVML_ERROR_NOT_FOUND: "there is no such GPU here; `nvidia-smi -L` lists those there are.",
        nvml.NVML_ERROR_INVALID_ARGUMENT: "there is no such GPU here; `nvidia-smi -L` lists those there are.",
    }
    if code in sentences:
        return NvmlUnavailable(sentences[code])
    return NvmlUnavailable(
        f"the NVIDIA driver does not let the GPU be seen from here ({error}); in a container, start it with the "
        "GPU (such as `--gpus all`), and again if it was there before."
    )


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the names of this machine's GPUs, such as ``cuda:0``, as far as `CUDA_VISIBLE_DEVICES` shows them.

    A GPU in MIG mode is named by its instances, such as ``cuda:0:1``.

    Parameters
    ----------
    environment
        Has that variable, or not.

    Returns
    -------
    names
        Empty without a driver.

    Raises
    ------
    NvmlUnavailable
        When there is a driver that does not work.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list_gpus()
    # as CUDA reads it: what follows an entry that names none is hidden, too
    shown = len(list(takewhile(lambda entry: entry.strip() not in ("", "-1"), visible.split(","))))
    return [f"cuda:{number}" for number in range(shown)]
