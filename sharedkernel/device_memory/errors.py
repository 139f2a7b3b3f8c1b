"""Errors of device memory. Each text is one sentence that says what was wrong and what to do."""

from __future__ import annotations

from sharedkernel.errors import SharedKernelError


class DeviceMemoryError(SharedKernelError):
    """A call about device memory failed; nothing was changed unless a subclass says otherwise."""

    reason = "device_memory"


class DriverUnavailable(DeviceMemoryError):
    """There is no driver here that can share memory between processes."""

    reason = "driver_unavailable"


class OutOfDeviceMemory(DeviceMemoryError):
    """The device has no memory left for this."""

    reason = "out_of_device_memory"


class DeviceFaulted(DeviceMemoryError):
    """The device cannot be used any more, or this process's context on it cannot."""

    reason = "device_lost"


class InvalidMapping(DeviceMemoryError):
    """A call breaks a rule of the driver: a bug of ours, never a user's."""

    reason = "invalid_mapping"


class LaneOccupied(DeviceMemoryError):
    """A lane was to change while an iteration uses it."""

    reason = "lane_occupied"


class HandOverPostponed(DeviceMemoryError):
    """The lane cannot be handed over now, but at a later boundary it can."""

    reason = "hand_over_postponed"


class ArenaBroken(DeviceMemoryError):
    """An error could not be undone: what this process has on the device is lost, and it has to end."""

    reason = "arena_broken"
