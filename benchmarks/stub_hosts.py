"""Stub hosts for the benchmark of a front: what they send, and what they answer."""

from __future__ import annotations

from tornado.web import RequestHandler
from tornado.websocket import WebSocketHandler

from sharedkernel.gateway.fleet.merged_status import merge
from sharedkernel.gateway.hosts.summary import DeviceSummary, HostSummary, UserSummary
from sharedkernel.scheduling.placement import PlacementName
from sharedkernel.status.document import DeviceStatus, LaneStatus, SessionStatus, StatusDocument, UserStatus

#: devices of a host, and users for each of its devices
_DEVICES_OF_HOST, _USERS_OF_DEVICE = 8, 10
#: what follows a host's prefix in its kernels' ids
UUID_REST = "-1111-4111-8111-111111111111"


class EchoHandler(WebSocketHandler):
    """A stub host's websocket."""

    def on_message(self, message: str | bytes) -> None:
        """Answer with the same."""
        self.write_message(message, binary=True)


class StubStatusHandler(RequestHandler):
    """A stub host's status document."""

    def initialize(self, document: bytes) -> None:
        """Take the *document*."""
        self._document = document

    def get(self) -> None:
        """Answer with the document."""
        self.finish(self._document)


def make_status(sessions: int) -> StatusDocument:
    """Return the status document of a host of eight devices with *sessions* each, a quarter of which run or wait."""
    states = ("running", "queued", *["idle"] * 6)
    devices = {
        f"cuda:{number}": StatusDocument(
            device=DeviceStatus(name="NVIDIA H100 80GB HBM3", kind="cuda", capacity_bytes=80 << 30),
            lanes=[LaneStatus(id=lane, size_bytes=1 << 30) for lane in range(4)],
            users=[UserStatus(name=f"student{number}-{user}") for user in range(min(_USERS_OF_DEVICE, sessions))],
            sessions=[
                SessionStatus(
                    id=f"{number:08x}-{session:04x}{UUID_REST[5:]}", kernel_id=f"{number:08x}{UUID_REST}",
                    user=f"student{number}-{session % _USERS_OF_DEVICE}", state=states[session % len(states)],
                    notebook=f"/home/student/lectures/week-{session}/homework.ipynb", persistent_bytes=1 << 30,
                )
                for session in range(sessions)
            ],
        )
        for number in range(_DEVICES_OF_HOST)
    }  # fmt: skip
    return merge(devices, {}, list(devices), PlacementName.LEAST_LOADED)


def make_summaries(devices: int, sessions: int, address: str) -> list[HostSummary]:
    """Return the summaries of hosts of eight devices.

    Parameters
    ----------
    devices
        Number of all devices.
    sessions
        Number of sessions on each.
    address
        URL of all hosts.
    """
    hosts = []
    for host in range(-(-devices // _DEVICES_OF_HOST)):
        count = min(_DEVICES_OF_HOST, devices - host * _DEVICES_OF_HOST)
        hosts.append(
            HostSummary(
                name=f"host{host}",
                address=address,
                version="1.0",
                devices=[
                    DeviceSummary(
                        name=f"cuda:{number}", model="NVIDIA H100 80GB HBM3", capacity_bytes=80 << 30,
                        free_bytes=(80 << 30) * (number + 1) // 10, active=sessions // (2 + number % 3),
                        utilisation=round(0.37 * sessions, 2),
                    )
                    for number in range(count)
                ],
                users={
                    f"student-{host}-{user}": UserSummary(sessions=-(-sessions // _USERS_OF_DEVICE))
                    for user in range(count * min(_USERS_OF_DEVICE, sessions))
                },
            )
        )  # fmt: skip
    return hosts
