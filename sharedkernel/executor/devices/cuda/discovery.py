"""An NVIDIA GPU by name: what can be served of it, and what has to be there for it.

The executor makes no CUDA context: what it knows of the GPU comes from NVML, and what sessions will import it asks of
the packages, without importing them. What is wrong is said in one sentence, before anything is started.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import runpy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharedkernel.device_memory.cuda_driver import CudaDriver, load_bindings
from sharedkernel.device_memory.driver import DeviceMemoryError, DriverUnavailable
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError
from sharedkernel.executor.devices import check_capacity
from sharedkernel.executor.devices.cuda.device import CudaDevice, CudaOptions, visibility
from sharedkernel.executor.devices.lane_server import LaneServer
from sharedkernel.protocol import Device
from sharedkernel.selftest.runner import Identity, SelfTest
from sharedkernel.system.nvml import UUIDS, Gpu, GpuFacts, device_numbers
from sharedkernel.units import format_bytes, parse_bytes

log = logging.getLogger(__name__)

#: kept free when nothing else is said: for contexts that are about to be made, and libraries' first allocations
_LEAST_RESERVE, _RESERVE_PART = 512 << 20, 0.02
#: numbers of units that an executor may use in each millisecond of its life, so that no two use the same
_UNITS_PER_MILLISECOND = 1 << 20


def named_device(name: str, environment: Mapping[str, str]) -> str:
    """Return what NVML calls the device *name*; a number counts as `CUDA_VISIBLE_DEVICES` does where that is set.

    Raises
    ------
    SharedKernelError
        When it is no name of a GPU, or that variable shows no such device.
    """
    if name.startswith(UUIDS):
        return name
    index, instance = device_numbers(name)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return name
    entries = [entry.strip() for entry in visible.split(",")]
    entry = entries[index] if index < len(entries) else ""
    if entry.isdecimal():
        entry = f"cuda:{entry}"
    elif not entry.startswith(UUIDS):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES is {visible!r}, which shows no GPU as {name}; unset it, or name another."
        )
    return f"{entry}:{instance}" if instance else entry


def describe(facts: GpuFacts, capacity: int | None, reserve: int | None) -> Device:
    """Return the device to serve.

    Parameters
    ----------
    facts
        What NVML says.
    capacity, reserve
        Bytes; without a capacity all that programs can have, without a reserve the larger of 512 MiB and 2 % of it.

    Raises
    ------
    ConfigError
        When the capacity is more than there is, or all of it is reserved.
    """
    if capacity is None:
        capacity = facts.total_bytes
    if reserve is None:
        reserve = max(_LEAST_RESERVE, int(capacity * _RESERVE_PART))
    device = Device(name=facts.name, kind="cuda", capacity_bytes=capacity, reserve_bytes=reserve)
    return check_capacity(device, facts.total_bytes, f"the {format_bytes(facts.total_bytes)} of {facts.name}")


def check_torch() -> str:
    """Return the version of the torch that sessions will import, if it can use CUDA; it is not imported here.

    Raises
    ------
    ConfigError
        When it cannot.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise ConfigError(f"torch is missing; install it with {install_hint('host')}.")
    version = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    if version.get("cuda") is None:
        raise ConfigError(
            f"torch {version['__version__']} is built without CUDA; install a CUDA build (https://pytorch.org), or use "
            "--device host."
        )
    return str(version["__version__"])


def why_unshared(bindings: Any) -> str | None:
    """Return why sessions cannot share memory on the first GPU this process sees, in one sentence; None if they can.

    It tries: a small piece of memory is created, exported and imported, for which no context is needed.

    Parameters
    ----------
    bindings
        The module `cuda.bindings.driver`.
    """
    try:
        CudaDriver(0, bindings).check_sharing()
    except (DeviceMemoryError, RuntimeError, AttributeError) as error:  # bindings and driver may lack calls
        return f"{str(error).rstrip('.')}; sessions' ephemeral memory is their own, and given back at a switch."
    return None


def open_device(
    name: str, capacity: str, reserve: str, options: CudaOptions, *, trust: Path | None = None
) -> CudaDevice:
    """Return the GPU *name*, ready to be served.

    Parameters
    ----------
    name
        ``cuda``, ``cuda:N``, ``cuda:N:M`` for a MIG instance, or a UUID.
    capacity, reserve
        As on the command line; empty: what :func:`describe` takes then.
    options
        The rest of it.
    trust
        File of earlier results of the self-test that count; None: none count.

    Raises
    ------
    SharedKernelError
        With one sentence, when it cannot be served.
    """
    gpu = Gpu(named_device(name, os.environ))
    torch_version = check_torch()
    try:
        driver = load_bindings()
    except DriverUnavailable as error:
        raise ConfigError(str(error)) from None
    device = describe(gpu.facts, parse_bytes(capacity) if capacity else None, parse_bytes(reserve) if reserve else None)
    # Before the driver is first called: this process, the warm parent and all its forks see this GPU alone, as cuda:0.
    os.environ.update(visibility(gpu.facts))
    lanes = open_lanes(driver, device)
    if isinstance(lanes, str):
        log.info("lanes' bytes are not shared: %s", lanes)
    identity = Identity(driver=gpu.facts.driver_version, torch=torch_version, card=gpu.facts.name, uuid=gpu.facts.uuid)
    return CudaDevice(gpu, device, options, lanes=lanes, self_test=SelfTest(identity, trust))


def open_lanes(bindings: Any, device: Device) -> LaneServer | str:
    """Return what gives lanes' bytes to the sessions of a device, or why they cannot share any.

    Parameters
    ----------
    bindings
        The module `cuda.bindings.driver`, which sees the device as its first one.
    device
        What is served of it.
    """
    if (unshared := why_unshared(bindings)) is not None:
        return unshared
    after = int(time.time() * 1000) * _UNITS_PER_MILLISECOND
    return LaneServer(LaneStore(CudaDriver(0, bindings), capacity=device.usable_bytes, after=after))
