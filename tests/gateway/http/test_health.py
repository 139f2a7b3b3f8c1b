"""Figures of devices for Prometheus."""

from __future__ import annotations

from prometheus_client import generate_latest

from sharedkernel.gateway.http.health import DeviceMetrics
from sharedkernel.status.document import DeviceStatus, StatusDocument


def test_a_gpus_sensors_are_metrics_and_absent_ones_are_left_out() -> None:
    """A device without sensors, or with some, has no figure of zero."""
    gpu = DeviceStatus(
        name="NVIDIA L4", utilisation=0.0, temperature_celsius=61.0, power_watts=58.3, power_limit_watts=None
    )
    documents = {"cuda:0": StatusDocument(device=gpu), "host": StatusDocument(device=DeviceStatus(name="host"))}
    text = generate_latest(DeviceMetrics(documents, {}, documents).registry).decode()
    found = [line for line in text.splitlines() if line.startswith("sharedkernel_device_") and "bytes" not in line]
    assert found == [
        'sharedkernel_device_up{device="cuda:0"} 1.0',
        'sharedkernel_device_up{device="host"} 1.0',
        'sharedkernel_device_utilisation{device="cuda:0"} 0.0',
        'sharedkernel_device_temperature_celsius{device="cuda:0"} 61.0',
        'sharedkernel_device_power_watts{device="cuda:0"} 58.3',
    ]
