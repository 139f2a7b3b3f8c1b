"""Metrics for Prometheus: the gateway's own, and those of its executors.

The executors' figures are collected when Prometheus reads, so nothing is stored twice. A device whose executor does not
answer has ``sharedkernel_device_up`` 0 and no other metric. Metrics by user are those of the status document, which all
users see; no metric contains a notebook's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sharedkernel.protocol import Counts
from sharedkernel.status.document import StatusDocument
from sharedkernel.status.figures import DEVICE, USER, Place, shown

#: seconds between measurements of the event loop's lag
_LAG_INTERVAL = 0.5
_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

LOOP_LAG = Histogram(
    "sharedkernel_gateway_loop_lag_seconds",
    "Lag of the gateway's event loop.",
    buckets=_LAG_BUCKETS,
)

#: help text of each counter of the executors
_ACTIONS = {
    "grants": "Grants of the device.",
    "preemptions": "Grants that were revoked at the next iteration boundary.",
    "forced_yields": "Grants that were revoked by a signal, since no boundary came.",
    "offloads": "Sessions that were asked to offload their memory.",
    "restores": "Sessions whose memory was restored.",
}


async def watch_loop_lag() -> None:
    """Measure the event loop's lag, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_INTERVAL
        await asyncio.sleep(_LAG_INTERVAL)
        LOOP_LAG.observe(max(0.0, loop.time() - due))


class DeviceMetrics:
    """The executors' metrics at one moment, in a registry of their own.

    Parameters
    ----------
    documents
        Status documents of the devices that answer, by name.
    counts
        Their counters, by name.
    devices
        Names of all devices.
    """

    def __init__(
        self, documents: Mapping[str, StatusDocument], counts: Mapping[str, Counts], devices: Iterable[str]
    ) -> None:
        self._documents = documents
        self._counts = counts
        self._devices = list(devices)
        #: collects these metrics alone; describing them by itself it would collect twice
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)  # type: ignore[arg-type]

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics; called by the registry."""
        up = GaugeMetricFamily("sharedkernel_device_up", "Whether the device's executor answers.", labels=["device"])
        for device in self._devices:
            up.add_metric([device], float(device in self._documents))
        yield up
        yield from self._collect_devices()
        yield from self._collect_users()
        yield self._collect_sessions()
        yield from self._collect_counts()

    def _collect_devices(self) -> Iterable[Metric]:
        for figure in shown(DEVICE, Place.METRIC):
            name = f"sharedkernel_device_{figure.fields[0]}"
            family = GaugeMetricFamily(name, figure.help, labels=["device"])
            for device, document in self._documents.items():
                if (value := figure.value(document.device)) is not None:
                    family.add_metric([device], value)
            yield family
        lanes = GaugeMetricFamily("sharedkernel_lanes", "Lanes on the device.", labels=["device"])
        for device, document in self._documents.items():
            lanes.add_metric([device], len(document.lanes))
        yield lanes

    def _collect_users(self) -> Iterable[Metric]:
        memory = GaugeMetricFamily(
            "sharedkernel_user_memory_bytes", "Memory of a user's sessions, by kind.", labels=["device", "user", "kind"]
        )
        quota = GaugeMetricFamily("sharedkernel_user_quota_bytes", "Memory quota of a user.", labels=["device", "user"])
        service = CounterMetricFamily(
            "sharedkernel_user_service_seconds", "Device time of a user's sessions.", labels=["device", "user"]
        )
        for device, document in self._documents.items():
            for user in document.users:
                for figure in shown(USER, Place.METRIC):
                    memory.add_metric([device, user.name, figure.name], figure.value(user) or 0)
                quota.add_metric([device, user.name], user.quota_bytes or 0)
                service.add_metric([device, user.name], user.attained_service_seconds)
        yield from (memory, quota, service)

    def _collect_sessions(self) -> Metric:
        sessions = GaugeMetricFamily("sharedkernel_sessions", "Sessions, by state.", labels=["device", "user", "state"])
        for device, document in self._documents.items():
            numbers: dict[tuple[str, str], int] = {}
            for session in document.sessions:
                key = session.user, session.state
                numbers[key] = numbers.get(key, 0) + 1
            for (user, state), number in numbers.items():
                sessions.add_metric([device, user, state], number)
        return sessions

    def _collect_counts(self) -> Iterable[Metric]:
        for name, text in _ACTIONS.items():
            family = CounterMetricFamily(f"sharedkernel_{name}", text, labels=["device"])
            for device, counts in self._counts.items():
                family.add_metric([device], counts.actions.get(name, 0))
            yield family
        refusals = CounterMetricFamily(
            "sharedkernel_refusals",
            "Requests for the device that were refused, by reason.",
            labels=["device", "reason"],
        )
        waits = HistogramMetricFamily(
            "sharedkernel_wait_seconds", "How long sessions waited for the device or for memory.", labels=["device"]
        )
        for device, counts in self._counts.items():
            for reason, number in counts.refusals.items():
                refusals.add_metric([device, reason], number)
            buckets, total = [], 0
            for bound, number in zip([*map(str, counts.wait_bounds_seconds), "+Inf"], counts.waits, strict=True):
                total += number
                buckets.append((bound, total))
            waits.add_metric([device], buckets, counts.waited_seconds)
        yield from (refusals, waits)
