"""Packing: the number of devices that hold some models at once, by three rules; arithmetic of memory, without time.

lanes
    Salus's safety condition for one lane: what is persistent of all, and the largest ephemeral need, fit together.
peaks
    Peaks side by side, as where processes share a device without knowing of each other.
exclusive
    A device each.

Models are put on the first device on which they fit, the largest peak first. That is no proof that fewer would not do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sharedkernel.errors import ConfigError
from sharedkernel.simulator.salus_models import ModelProfile


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
