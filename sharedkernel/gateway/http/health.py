"""Routes for operators: health, readiness and metrics.

``/healthz`` and ``/readyz`` need no token, since probes have none; they reveal nothing but names of devices.

Metrics are for Prometheus: the gateway's own, and those of its executors, which are collected when Prometheus reads, so
nothing is stored twice. A device whose executor does not answer has ``sharedkernel_device_up`` 0 and no other metric.
Metrics by user are those of the status document, which all users see; no metric contains a notebook's name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import prometheus_client
from jupyter_server.auth.decorator import allow_unauthenticated, authorized
from jupyter_server.base.handlers import APIHandler
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from tornado import web

from sharedkernel.gateway.errors import ErrorResponseMixin
from sharedkernel.gateway.fleet.executors import ask_each
from sharedkernel.gateway.kernels.manager import kernel_manager_of
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.protocol import Counts
from sharedkernel.status.document import StatusDocument
from sharedkernel.status.figures import DEVICE, USER, Place, shown

#: seconds between measurements of the event loop's lag
_LAG_INTERVAL = 0.5
_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

LOOP_LAG = Histogram("sharedkernel_gateway_loop_lag_seconds", "Lag of the gateway's event loop.", buckets=_LAG_BUCKETS)

#: help text of each counter of the executors
_ACTIONS = {
    "grants": "Grants of the device.",
    "preemptions": "Grants that were revoked at the next iteration boundary.",
    "forced_yields": "Grants that were revoked by a signal, since no boundary came.",
    "offloads": "Sessions that were asked to offload their memory.",
    "restores": "Sessions whose memory was restored.",
}
#: seconds to wait for an executor's counters
_TIMEOUT = 2.0


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
        up = {(device,): float(device in self._documents) for device in self._devices}
        yield _filled(GaugeMetricFamily, "device_up", "Whether the device's executor answers.", (), up)
        for figure in shown(DEVICE, Place.METRIC):
            values = {(device,): figure.value(document.device) for device, document in self._documents.items()}
            yield _filled(GaugeMetricFamily, f"device_{figure.fields[0]}", figure.help, (), values)
        lanes = {(device,): len(document.lanes) for device, document in self._documents.items()}
        yield _filled(GaugeMetricFamily, "lanes", "Lanes on the device.", (), lanes)
        yield from self._collect_users()
        yield from self._collect_counts()

    def _collect_users(self) -> Iterable[Metric]:
        memory, quota, service, sessions = {}, {}, {}, Counter[tuple[str, ...]]()
        for device, document in self._documents.items():
            for user in document.users:
                for figure in shown(USER, Place.METRIC):
                    memory[device, user.name, figure.name] = figure.value(user) or 0
                quota[device, user.name] = user.quota_bytes or 0
                service[device, user.name] = user.attained_service_seconds
            sessions.update((device, session.user, session.state) for session in document.sessions)
        help_text = "Memory of a user's sessions, by kind."
        yield _filled(GaugeMetricFamily, "user_memory_bytes", help_text, ("user", "kind"), memory)
        yield _filled(GaugeMetricFamily, "user_quota_bytes", "Memory quota of a user.", ("user",), quota)
        help_text = "Device time of a user's sessions."
        yield _filled(CounterMetricFamily, "user_service_seconds", help_text, ("user",), service)
        yield _filled(GaugeMetricFamily, "sessions", "Sessions, by state.", ("user", "state"), sessions)

    def _collect_counts(self) -> Iterable[Metric]:
        for name, text in _ACTIONS.items():
            numbers = {(device,): counts.actions.get(name, 0) for device, counts in self._counts.items()}
            yield _filled(CounterMetricFamily, name, text, (), numbers)
        refusals = {
            (device, reason): number
            for device, counts in self._counts.items()
            for reason, number in counts.refusals.items()
        }
        help_text = "Requests for the device that were refused, by reason."
        yield _filled(CounterMetricFamily, "refusals", help_text, ("reason",), refusals)
        waits = HistogramMetricFamily(
            "sharedkernel_wait_seconds", "How long sessions waited for the device or for memory.", labels=["device"]
        )
        for device, counts in self._counts.items():
            bounds = [*map(str, counts.wait_bounds_seconds), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts.waits), strict=True))
            waits.add_metric([device], buckets, counts.waited_seconds)
        yield waits


def _filled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Mapping[Any, float | None],
) -> Metric:
    """Return the metrics of one name, by device and *labels*, of which *values* are known."""
    family = kind(f"sharedkernel_{name}", text, labels=["device", *labels])
    for key, value in values.items():
        if value is not None:
            family.add_metric(key, value)
    return family


class HealthHandler(web.RequestHandler):
    """``/healthz``: whether this process serves requests."""

    @allow_unauthenticated
    def get(self) -> None:
        """Return "ok"."""
        self.finish("ok\n")

    def _log(self) -> None:
        pass  # probes ask every few seconds


class ReadyHandler(HealthHandler):
    """``/readyz``: whether new sessions can be started."""

    @allow_unauthenticated
    def get(self) -> None:
        """Return 200 if every executor answers and the gateway is not draining; else 503 and the reason."""
        manager = kernel_manager_of(self)
        reason = "ok"
        if manager.draining is not None:
            reason = "draining"
        elif away := [name for name in manager.executors if name not in manager.executors.connected()]:
            reason = f"away: {_names(away)}" if manager.executors.connected() else "no executor"
        elif silent := manager.executors.silent():
            reason = f"there, but does not answer; its log may say why: {_names(silent)}"
        if reason != "ok":
            self.set_status(503)
        self.finish(f"{reason}\n")


class MetricsHandler(ErrorResponseMixin, APIHandler):
    """``/metrics``, for Prometheus: Jupyter's own figures, the gateway's, and those of the devices."""

    auth_resource = "sharedkernel"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return all metrics; those of devices that do not answer are left out."""
        manager = kernel_manager_of(self)
        executors = manager.executors
        documents = await executors.documents()
        counts, _ = await ask_each(executors, documents, ExecutorClient.counts, seconds=_TIMEOUT)
        # a device's name in the configuration, or its kind if it has none
        labels = {name: name or getattr(executors[name].device, "kind", "unknown") for name in executors}
        metrics = DeviceMetrics(
            {labels[name]: document for name, document in documents.items()},
            {labels[name]: answer for name, answer in counts.items()},
            labels.values(),
        )
        self.set_header("Content-Type", prometheus_client.CONTENT_TYPE_LATEST)
        self.write(prometheus_client.generate_latest(prometheus_client.REGISTRY))
        self.finish(prometheus_client.generate_latest(metrics.registry))


def _names(devices: Iterable[str]) -> str:
    """Return the devices' names; the only device has none."""
    return ", ".join(f"the executor of {name}" if name else "the executor" for name in devices)


default_handlers = [(r"/healthz", HealthHandler), (r"/readyz", ReadyHandler), (r"/metrics", MetricsHandler)]
