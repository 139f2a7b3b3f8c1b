"""A front's answers to its page, in which it merges those of its hosts: timelines and audit logs."""

from __future__ import annotations

from typing import Any

from sharedkernel.gateway.hosts.front import Front
from sharedkernel.gateway.page.audit_tail import AuditTailHandler
from sharedkernel.gateway.page.timeline import TimelineHandler
from sharedkernel.status.timeline import TimelineWindow


class FrontTimelineHandler(TimelineHandler):
    """``/sharedkernel/api/timeline``: what sessions did on all hosts."""

    async def devices(self, window: TimelineWindow) -> list[dict[str, Any]]:
        """Return the timeline of each device, whose name begins with its host's."""
        front: Front = self.settings["front"]
        uri = f"/sharedkernel/api/timeline?{self.request.query}"
        answers = await front.requests.fetch_all(front.hosts.answering(), self.current_user, uri)
        return [
            {**device, "device": "/".join(filter(None, (host, device["device"])))}
            for host in sorted(answers)
            for device in _devices(answers[host])
        ]


class FrontAuditTailHandler(AuditTailHandler):
    """``/sharedkernel/api/audit``: the newest entries of the front's audit log and of its hosts'."""

    async def newest(self, user: str, most: int) -> tuple[list[dict[str, Any]], bool]:
        """Return the newest entries, newest first, and whether there may be older ones."""
        front: Front = self.settings["front"]
        entries, is_cut = await super().newest(user, most)
        uri = f"/sharedkernel/api/audit?{self.request.query}"
        answers = await front.requests.fetch_all(front.hosts.answering(), self.current_user, uri)
        for host, answer in answers.items():
            entries += [{**entry, "host": host} for entry in answer["entries"]]
            is_cut = is_cut or answer["older"]
        entries.sort(key=lambda entry: str(entry.get("time")), reverse=True)  # all are in UTC
        return entries[:most], is_cut or len(entries) > most


def _devices(answer: Any) -> list[dict[str, Any]]:
    """Return what a host answered of its devices."""
    devices = answer.get("devices") if isinstance(answer, dict) else None
    return [device for device in devices or [] if isinstance(device, dict) and "device" in device]


default_handlers: list[Any] = [
    (r"/sharedkernel/api/timeline", FrontTimelineHandler),
    (r"/sharedkernel/api/audit", FrontAuditTailHandler),
]
