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

A session is one job, in a trust domain with all others.

Models are those whose memory and speed Salus's authors published beside "Salus: Fine-Grained GPU Sharing Primitives for
Deep Learning Applications" (MLSys 2020), measured on a P100 of 16 GB with TensorFlow 1: what a model keeps between
iterations, its peak, and how long an iteration takes (ten minutes' run over its iterations, start included; None where
no run was published). Memory is in MiB, rounded to a tenth, times in milliseconds.

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
from dataclasses import dataclass

from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.simulator.device import CellRun, SimulatedCell, SimulatedDevice, SimulatedSession
from sharedkernel.simulator.report import Figure, SimulationResult

_MEBIBYTE = 1 << 20

#: seconds after which an iteration is interrupted: none is, as in Salus
PATIENCE = 3600.0

_ANSWER_SECONDS = 0.025
_REQUESTS = 20
#: (seconds of an iteration where none were published, utilisation)
_ASSUMED = {"resnet50_50": (None, 0.95), "superres_128": (0.07, 0.6), "vae_64": (0.005, 0.1)}
_SEARCHED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One model at one batch size."""

    #: ``MODEL_BATCH``
    name: str
    #: bytes kept between iterations
    persistent: int
    #: bytes at the peak of an iteration
    peak: int
    #: seconds of an iteration; None: not published
    iteration: float | None

    @property
    def ephemeral(self) -> int:
        """Bytes that an iteration needs beyond what is kept."""
        return self.peak - self.persistent


# fmt: off
#: training: (batch, iteration, persistent, peak) by model
_TRAINING: Mapping[str, tuple[tuple[str, float | None, float, float], ...]] = {
    "alexnet": (("25", 21.5, 265.4, 1049.9), ("50", 29.6, 294.9, 1237.9), ("100", 45.7, 353.9, 1614.0)),
    "googlenet": (("25", 60.6, 71.7, 1396.3), ("50", 102.7, 129.8, 2034.8), ("100", 184.9, 216.0, 3311.7)),
    "inception3": (("25", 208.0, 235.0, 4544.1), ("50", 383.3, 380.2, 6883.1), ("100", 735.4, 591.3, 11561.0)),
    "inception4": (("25", 437.9, 372.2, 7440.2), ("50", 798.7, 587.8, 11355.1), ("75", 1163.8, 759.5, 14735.0)),
    "overfeat": (("25", 50.8, 587.2, 3694.1), ("50", 64.5, 617.8, 3898.8), ("100", 100.1, 678.8, 4308.3)),
    "resnet101": (("25", 228.8, 282.9, 5650.1), ("50", 406.0, 456.0, 8654.6), ("75", 584.0, 702.3, 11659.0)),
    "resnet152": (("25", 335.6, 350.1, 6980.0), ("50", 595.8, 575.8, 11190.3), ("75", 855.5, 822.2, 14993.4)),
    "resnet50": (("25", 129.3, 227.4, 4528.3), ("50", 233.6, 339.0, 6556.5), ("75", 337.4, 459.4, 8584.8)),
    "seq2seq": (("small", None, 22.0, 83.3), ("medium", None, 80.0, 1042.7), ("large", None, 257.0, 5124.4)),
    "speech": (("25", None, 493.5, 2253.6), ("50", None, 493.8, 3993.3), ("75", None, 494.1, 5733.2)),
    "superres": (("32", None, 17.5, 270.3), ("64", None, 31.7, 528.7), ("128", None, 60.4, 1053.4)),
    "vae": (("64", None, 20.5, 24.0), ("128", None, 20.9, 27.5), ("256", None, 21.7, 34.9)),
    "vgg11": (("25", 107.2, 535.6, 4218.4), ("50", 187.9, 564.3, 5236.7), ("100", 340.7, 621.7, 7343.1)),
    "vgg16": (("25", 194.4, 556.6, 4889.4), ("50", 360.4, 585.3, 6742.3), ("100", 677.2, 642.7, 9613.5)),
    "vgg19": (("25", 227.4, 576.8, 4929.9), ("50", 423.8, 605.5, 6762.5), ("100", 794.7, 663.0, 9782.8)),
}
#: inference, one request at a time: (persistent, peak) by model
_INFERENCE: Mapping[str, tuple[float, float]] = {
    "alexnet": (237.1, 572.8), "googlenet": (37.9, 734.4), "inception3": (106.3, 2121.4),
    "inception4": (172.2, 3443.6), "overfeat": (557.9, 2937.8), "resnet101": (171.5, 2488.6),
    "resnet152": (231.4, 2548.4), "resnet50": (124.4, 2415.9), "speech": (116.4, 144.2),
    "superres": (0.9, 137.1), "vae": (5.0, 6.5), "vgg11": (508.0, 2710.8),
    "vgg16": (529.0, 2731.8), "vgg19": (549.2, 2752.1),
}
# fmt: on


def _profile(name: str, iteration: float | None, persistent: float, peak: float) -> ModelProfile:
    return ModelProfile(
        name=name,
        persistent=round(persistent * _MEBIBYTE),
        peak=round(peak * _MEBIBYTE),
        iteration=None if iteration is None else iteration / 1000,
    )


#: the 45 trainings by name
TRAINING: Mapping[str, ModelProfile] = {
    f"{model}_{batch}": _profile(f"{model}_{batch}", iteration, persistent, peak)
    for model, rows in _TRAINING.items()
    for batch, iteration, persistent, peak in rows
}

#: the 14 models for inference by name
INFERENCE: Mapping[str, ModelProfile] = {
    model: _profile(f"{model}_1", None, persistent, peak) for model, (persistent, peak) in _INFERENCE.items()
}


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
    return outcome_of(runs, label, _devices_needed(sessions, config.capacity - config.reserve))


def outcome_of(runs: Sequence[CellRun], policy: str, added: Mapping[str, Figure]) -> SimulationResult:
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
    return SimulationResult(policy=policy, runs=runs, devices=1, used=_busy(runs), added=added)


def _session(
    model: ModelProfile, name: str, cells: Sequence[SimulatedCell], *, utilisation: float = 1.0, ends: bool = True
) -> SimulatedSession:
    return SimulatedSession(
        name=name,
        cells=cells,
        persistent=model.persistent,
        ephemeral=model.ephemeral,
        utilisation=utilisation,
        ends=ends,
    )


def _devices_needed(sessions: Sequence[SimulatedSession], capacity: int) -> dict[str, Figure]:
    """Return how many devices hold all of *sessions* at once, by each rule; None where one of them fits none."""
    names = {"lanes": "devices_needed", "peaks": "devices_needed_peaks", "exclusive": "devices_needed_exclusive"}
    return {name: devices_needed(sessions, capacity, rule) for rule, name in names.items()}


def _busy(runs: Sequence[CellRun]) -> float:
    """Return for how long at least one of *runs* had the device, seconds."""
    busy, until = 0.0, -math.inf
    for started, ended in sorted((each for run in runs for each in run.stretches), key=lambda each: each[0]):
        busy += max(0.0, ended - max(started, until))
        until = max(until, ended)
    return busy


#: rules by name: whether models fit one device
RULES: Mapping[str, Callable[[Sequence[ModelProfile | SimulatedSession], int], bool]] = {
    "lanes": lambda models, capacity: (
        sum(model.persistent for model in models) + max(model.ephemeral for model in models) <= capacity
    ),
    "peaks": lambda models, capacity: sum(model.peak for model in models) <= capacity,
    "exclusive": lambda models, capacity: len(models) == 1 and models[0].peak <= capacity,
}


def devices_needed(models: Sequence[ModelProfile | SimulatedSession], capacity: int, rule: str) -> int | None:
    """Return how many devices first fit takes for *models*; None: one of them fits none.

    Parameters
    ----------
    models
        All of them are to be there at once.
    capacity
        Memory of each device, bytes.
    rule
        One of :data:`RULES`.
    """
    fits = RULES[rule]
    devices: list[list[ModelProfile | SimulatedSession]] = []
    for model in sorted(models, key=lambda model: -model.peak):
        if not fits([model], capacity):
            return None
        device = next((device for device in devices if fits([*device, model], capacity)), None)
        if device is None:
            devices.append([model])
        else:
            device.append(model)
    return len(devices)
