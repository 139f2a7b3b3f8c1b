"""Workloads for one device, built from published models, and what a policy makes of them.

inference-42
    Salus's inference experiment: 14 models, three of each, answer one request at a time; each is sent one 10 s after
    the answer to the last, up to three times as long at random. An answer takes 25 ms (assumed: none was published).
hyperparameter-300
    Salus's search for hyper-parameters: 100 trainings each of resnet50_50, superres_128 and vae_64, all there from the
    start, 500 iterations each. For the last two no times were published; 70 ms and 5 ms an iteration are assumed, and
    that they keep the device busy for 0.6 and 0.1 of it, resnet50_50 for 0.95.
trace-100
    Salus's trace was never published. Ours: models drawn from those whose times were and whose peak fits 14 GiB,
    lengths from the one, five and ten minutes that were measured of each, all alike likely, arrivals a Poisson process
    of two a minute, as in Tiresias's published trace.

A session is one job, in a trust domain with all others, of a user of its own.

How many devices would hold all of a workload's models at once is counted by three rules (:data:`RULES`), without time:

lanes
    Salus's safety condition for one lane: what is persistent of all, and the largest ephemeral need, fit together.
peaks
    Peaks side by side, as where processes share a device without knowing of each other.
exclusive
    A device each.

Models are put on the first device on which they fit, the largest peak first. That is no proof that fewer would not do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.simulator.device import CellRun, SimulatedCell, SimulatedDevice, SimulatedSession
from sharedkernel.simulator.report import Figure, JobSpan, SimulationResult, result_of
from sharedkernel.simulator.salus_models import INFERENCE, TRAINING, ModelProfile

#: seconds after which an iteration is interrupted: none is, as in Salus
PATIENCE = 3600.0

_ANSWER_SECONDS = 0.025
_REQUESTS = 20
#: (seconds of an iteration where none were published, utilisation)
_ASSUMED = {"resnet50_50": (None, 0.95), "superres_128": (0.07, 0.6), "vae_64": (0.005, 0.1)}
_SEARCHED = 500


def inference_42(seed: int) -> list[SimulatedSession]:
    """Return the sessions of `inference-42`; see the top of this module."""
    rng = random.Random(seed)
    sessions = []
    for copy in range(3):
        for model in INFERENCE.values():
            cells = [
                SimulatedCell(seconds=_ANSWER_SECONDS, iteration=_ANSWER_SECONDS, pause=10.0 * rng.uniform(1.0, 3.0))
                for _ in range(_REQUESTS)
            ]
            # Models for inference stay when they have answered.
            sessions.append(_session(model, f"{model.name}-{copy}", cells, ends=False))
    return sessions


def hyperparameter_300(seed: int) -> list[SimulatedSession]:
    """Return the sessions of `hyperparameter-300`, in an order that *seed* shuffles."""
    sessions = []
    for name, (assumed, utilisation) in _ASSUMED.items():
        model = TRAINING[name]
        iteration = model.iteration or assumed
        assert iteration is not None
        cell = SimulatedCell(seconds=_SEARCHED * iteration, iteration=iteration)
        sessions += [_session(model, f"{name}-{n}", [cell], utilisation=utilisation) for n in range(100)]
    random.Random(seed).shuffle(sessions)
    return sessions


def trace_100(seed: int) -> list[SimulatedSession]:
    """Return the sessions of `trace-100`."""
    rng = random.Random(seed)
    models = [model for model in TRAINING.values() if model.iteration is not None and model.peak <= 14 << 30]
    now, sessions = 0.0, []
    for number in range(100):
        model = rng.choice(models)
        assert model.iteration is not None
        iterations = max(1, round(rng.choice((60.0, 300.0, 600.0)) / model.iteration))
        cell = SimulatedCell(seconds=iterations * model.iteration, iteration=model.iteration, pause=now)
        sessions.append(_session(model, f"{model.name}-{number}", [cell]))
        now += rng.expovariate(1 / 30)
    return sessions


#: workloads by name, each made from a seed
DEVICE_WORKLOADS: Mapping[str, Callable[[int], list[SimulatedSession]]] = {
    "inference-42": inference_42,
    "hyperparameter-300": hyperparameter_300,
    "trace-100": trace_100,
}


def simulate_device(
    sessions: Sequence[SimulatedSession],
    config: SchedulerConfig,
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> SimulationResult:
    """Run *sessions* on one device and return what it came to.

    Parameters
    ----------
    sessions
        The workload.
    config
        How the device is scheduled.
    on_progress
        Told how many cells are over whenever one is.
    """
    device = SimulatedDevice(config, sessions, on_progress=on_progress)
    runs = device.run()
    label = f"{config.policy} with backfill" if config.backfill else str(config.policy)
    return outcome_of(runs, label, added=_devices_needed(sessions, config.capacity - config.reserve))


def outcome_of(runs: Sequence[CellRun], policy: str, *, added: Mapping[str, Figure] | None = None) -> SimulationResult:
    """Return the result of one simulated device.

    Parameters
    ----------
    runs
        Of all cells, in the order in which they were sent.
    policy
        What the result is called.
    added
        More figures to report.
    """
    return result_of(runs, policy, devices=1, used=_busy, added=added)


def _session(
    model: ModelProfile,
    name: str,
    cells: Sequence[SimulatedCell],
    *,
    utilisation: float = 1.0,
    ends: bool = True,
) -> SimulatedSession:
    return SimulatedSession(
        name=name,
        user=name,
        cells=cells,
        persistent=model.persistent,
        ephemeral=model.ephemeral,
        utilisation=utilisation,
        ends=ends,
    )


def _devices_needed(sessions: Sequence[SimulatedSession], capacity: int) -> dict[str, Figure]:
    """Return how many devices hold all of *sessions* at once, by each rule; None where one of them fits none."""
    models = [
        ModelProfile(
            name=session.name,
            persistent=session.persistent,
            peak=session.persistent + session.ephemeral,
            iteration=None,
        )
        for session in sessions
    ]
    needed: dict[str, Figure] = {}
    for rule in RULES:
        name = "devices_needed" if rule == "lanes" else f"devices_needed_{rule}"
        try:
            needed[name] = devices_needed(models, capacity, rule)
        except ConfigError:
            needed[name] = None
    return needed


def _busy(spans: Sequence[JobSpan]) -> float:
    """Return for how long at least one of *spans* lasted, seconds."""
    busy, until = 0.0, -math.inf
    for span in sorted(spans, key=lambda span: span.started):
        busy += max(0.0, span.ended - max(span.started, until))
        until = max(until, span.ended)
    return busy


def fits_in_lanes(models: Sequence[ModelProfile], capacity: int) -> bool:
    """Return whether models can take turns in one lane of a device.

    Parameters
    ----------
    models
        All on the same device.
    capacity
        Memory of the device, bytes.
    """
    return sum(model.persistent for model in models) + max(model.ephemeral for model in models) <= capacity


def fits_peaks(models: Sequence[ModelProfile], capacity: int) -> bool:
    """Return whether the peaks of models fit side by side on a device.

    Parameters
    ----------
    models
        All on the same device.
    capacity
        Memory of the device, bytes.
    """
    return sum(model.peak for model in models) <= capacity


def fits_exclusively(models: Sequence[ModelProfile], capacity: int) -> bool:
    """Return whether it is one model, and fits a device.

    Parameters
    ----------
    models
        All on the same device.
    capacity
        Memory of the device, bytes.
    """
    return len(models) == 1 and models[0].peak <= capacity


#: rules by name: whether models fit one device
RULES: Mapping[str, Callable[[Sequence[ModelProfile], int], bool]] = {
    "lanes": fits_in_lanes,
    "peaks": fits_peaks,
    "exclusive": fits_exclusively,
}


def devices_needed(models: Sequence[ModelProfile], capacity: int, rule: str) -> int:
    """Return how many devices first fit takes for *models*.

    Parameters
    ----------
    models
        All of them are to be there at once.
    capacity
        Memory of each device, bytes.
    rule
        One of :data:`RULES`.

    Raises
    ------
    ConfigError
        When a model fits no device.
    """
    fits = RULES[rule]
    devices: list[list[ModelProfile]] = []
    for model in sorted(models, key=lambda model: -model.peak):
        if not fits([model], capacity):
            raise ConfigError(f"{model.name} needs {model.peak} bytes and fits no device of {capacity} bytes.")
        device = next((device for device in devices if fits([*device, model], capacity)), None)
        if device is None:
            devices.append([model])
        else:
            device.append(model)
    return len(devices)
