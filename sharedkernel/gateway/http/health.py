"""Routes for operators: health, readiness and metrics.

``/healthz`` and ``/readyz`` need no token, since probes have none; they reveal nothing but names of devices.
"""

from __future__ import annotations

from collections.abc import Iterable

import prometheus_client
from jupyter_server.auth.decorator import allow_unauthenticated, authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from sharedkernel.gateway.errors import ErrorResponseMixin
from sharedkernel.gateway.fleet.executors import ask_each
from sharedkernel.gateway.http.metrics import DeviceMetrics
from sharedkernel.gateway.kernels.manager import kernel_manager_of
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.protocol import Device

#: seconds to wait for an executor's counters
_TIMEOUT = 2.0


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
        labels = {name: _label(name, executors[name].device) for name in executors}
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


def _label(name: str, device: Device | None) -> str:
    """Return a device's label: its name in the configuration, or its kind if it has none."""
    return name or (device.kind if device is not None else "unknown")


default_handlers = [(r"/healthz", HealthHandler), (r"/readyz", ReadyHandler), (r"/metrics", MetricsHandler)]
