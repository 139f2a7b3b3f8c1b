"""A front's routes: those of a host's gateway, forwarded to the host that they are about, or to all of them."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, ClassVar, cast
from urllib.parse import urlencode

import msgspec
from jupyter_server.auth.decorator import allow_unauthenticated, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.services.kernels import handlers as kernels
from jupyter_server.services.sessions import handlers as sessions
from tornado import web
from tornado.httpclient import HTTPResponse
from tornado.iostream import IOStream

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.audit import AuditedHandler
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.errors import ErrorResponseMixin
from sharedkernel.gateway.hosts.front import Front
from sharedkernel.gateway.hosts.member import CORDON_PATH
from sharedkernel.gateway.hosts.registration import PATH, RegistrationHandler
from sharedkernel.gateway.hosts.registry import Host, HostAway
from sharedkernel.gateway.hosts.requests import HostRules, no_trust
from sharedkernel.gateway.http import handlers
from sharedkernel.gateway.http.health import HealthHandler
from sharedkernel.gateway.http.ports import ports_of
from sharedkernel.gateway.http.splice import Splice, WebsocketRefused, open_websocket, request_head, uri_of
from sharedkernel.gateway.http.status_feed import StatusFeedHandler
from sharedkernel.gateway.page.audit_tail import AuditTailHandler
from sharedkernel.gateway.page.history import STEP_SECONDS, TimelineHandler
from sharedkernel.status.timeline import TimelineWindow

#: headers of a host's answer that its client gets
_ANSWERED = ("Content-Type", "Location", "Retry-After", "Cache-Control")
#: headers of a client's request that a host gets
_ASKED = ("Content-Type", "Accept", "User-Agent")
#: seconds that a host may take for its shelves: it waits for each of its executors itself
_SHELVES_ANSWER = 15.0
#: most devices whose last hour a page gets, as many as a status document has of a large cluster
_MAX_HISTORIES = 64


class FrontHandler(handlers.GatewayHandler):
    """Base of the routes of a front; hosts check what a user may do there."""

    @property
    def front(self) -> Front:
        """The registry of hosts."""
        return cast("Front", self.settings["front"])

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers for a host."""
        return [(name, self.request.headers[name]) for name in _ASKED if name in self.request.headers]

    async def forward(self, kernel_id: str = "") -> None:
        """Answer with what the host of a kernel answers, or any host."""
        host = self.front.host_of(kernel_id) if kernel_id else self.front.any_host()
        user, method, body = self.current_user, self.request.method or "GET", self.request.body or None
        answer = await self.front.requests.fetch(host, user, method, uri_of(self), body=body, headers=self.headers)
        pass_on(self, answer)


def pass_on(handler: web.RequestHandler, answer: HTTPResponse | WebsocketRefused) -> None:
    """Answer with a host's *answer*, and those of its headers that its client gets."""
    handler.set_status(answer.code, answer.reason)
    for name in _ANSWERED:
        if name in answer.headers:
            handler.set_header(name, answer.headers[name])
    if answer.code == HTTPStatus.NO_CONTENT:
        handler.clear_header("Content-Type")
        handler.finish()
    else:
        handler.finish(answer.body)


class ForwardedHandler(FrontHandler):
    """Requests about one kernel or notebook session, which go to its host; those about none go to any."""

    @web.authenticated
    async def get(self, kernel_id: str = "", session_id: str = "", **_: str) -> None:
        """Forward the request."""
        await self.forward(kernel_id or session_id)

    post = put = patch = delete = get


class ListedHandler(FrontHandler):
    """``/api/kernels`` and ``/api/sessions``."""

    @web.authenticated
    async def get(self) -> None:
        """List what all hosts list."""
        self.finish(json.dumps(await self.front.list_all(self.current_user, uri_of(self))))

    @web.authenticated
    async def post(self) -> None:
        """Have a session started, on the host that placement chooses."""
        body = handlers.read_body(self, {"env": dict, "path": str, "kernel": dict})
        if kernel_id := body.get("kernel", {}).get("id"):
            await self.forward(str(kernel_id))
            return
        key = body.get("env", {}).get("KERNEL_CLIENT_KEY")
        path = body.get("path") if self.request.path.endswith("sessions") else None
        request = uri_of(self), self.request.body, self.headers
        pass_on(self, await self.front.start(self.current_user, request, client_key=key and str(key), path=path))


class FrontPolicyHandler(ForwardedHandler):
    """``/sharedkernel/api/policy``: read from one host, changed on all."""

    actions: ClassVar[dict[str, str]] = {"PUT": "change policy"}

    @web.authenticated
    async def put(self) -> None:  # type: ignore[override]  # the route names nothing
        """Change the policy of all hosts; the answer is that of one which accepts it, if any does, and has `notes`."""
        self.front.any_host()
        rules, user, body = self.front.host_rules, self.current_user, self.request.body
        answers = await rules.send(user, "PUT", uri_of(self), body)
        passed = min(answers.values(), key=lambda answer: answer.code, default=None)
        if passed is None:
            raise HostAway("no host has answered; nothing was changed, try again.")
        if passed.code >= HTTPStatus.BAD_REQUEST:
            pass_on(self, passed)
            return
        notes = rules.hold(user, answers, policy=json.loads(body)["policy"])
        self.finish(json.dumps(json.loads(passed.body) | ({"notes": notes} if notes else {})))


class FrontQuotasHandler(handlers.QuotasHandler):
    """``/sharedkernel/api/quotas``: the front's own, changed on all hosts."""

    async def apply_change(self) -> list[str]:
        """Send the change to all hosts, and return a note for each that has not got it."""
        rules: HostRules = self.settings["front"].host_rules
        answers = await rules.send(self.current_user, self.request.method or "PUT", uri_of(self), self.request.body)
        return rules.hold(self.current_user, answers)


def _describe_host(host: Host, *, with_users: bool) -> dict[str, Any]:
    """Return what people are told of a host.

    Parameters
    ----------
    host
        The host.
    with_users
        Whether to name the users who have something there, as admins may know.
    """
    found: dict[str, Any] = {
        **msgspec.to_builtins(host.entry()),
        "address": host.address,
        "devices": [device.id for device in host.devices],
    }
    if with_users:
        found["users"] = {
            name: {kind: getattr(user, kind) for kind in ("sessions", "has_left", "lingers", "has_shelf")}
            for name, user in host.users.items()
        }
    return found


class HostsHandler(FrontHandler):
    """``/sharedkernel/api/hosts``: the hosts of the cluster."""

    @handlers.for_users
    async def get(self) -> None:
        """Return each host's name, version, devices, sessions, whether it answers, and how far it is drained."""
        found = [_describe_host(host, with_users=self.current_user.admin) for host in self.front.hosts.all()]
        self.finish(json.dumps({"hosts": found}))


class HostHandler(FrontHandler):
    """``/sharedkernel/api/hosts/NAME``: a host that can be cordoned and forgotten."""

    actions: ClassVar[dict[str, str]] = {"PUT": "cordon host", "DELETE": "forget host"}

    @web.authenticated
    async def put(self, name: str) -> None:
        """Cordon a host, or end that, as the body says (`CordonHandler`); the host itself asks for an admin."""
        host = self.front.hosts.find(name)
        answer = await self.front.requests.fetch(host, self.current_user, "PUT", CORDON_PATH, body=self.request.body)
        if answer.code < HTTPStatus.BAD_REQUEST:
            host.is_cordoned = json.loads(self.request.body)["cordoned"]  # its next summary says the same
        pass_on(self, answer)

    @handlers.for_users
    async def delete(self, name: str) -> None:
        """Forget a host that is gone for good; for admins."""
        self.check_admin("may forget a host")
        self.front.forget(name)
        self.finish_empty()


class FrontReadyHandler(HealthHandler):
    """``/readyz``: whether a host answers."""

    @allow_unauthenticated
    def get(self) -> None:
        """Return 200 if one does, else 503."""
        is_ready = any(host.devices for host in self.settings["front"].hosts.answering())
        self.set_status(200 if is_ready else 503)
        self.finish("ok\n" if is_ready else "no host\n")


class SpliceHandler(ErrorResponseMixin, AuditedHandler, JupyterHandler):
    """``/api/kernels/ID/channels``: the websocket of a session's messages, joined to its host's."""

    _splice: Splice | None = None

    #: counts its user's websockets of this kind
    registry = "open_websockets"

    async def find_host(self) -> Host:
        """Return the host of the kernel that the route names."""
        return cast("Front", self.settings["front"]).host_of(self.path_kwargs["kernel_id"])

    @ws_authenticated
    async def get(self, **_: str) -> None:
        """Join the websocket to the host's; returns when it is closed."""
        if self.request.headers.get("Upgrade", "").lower() != "websocket":  # nor may a page's cookie open one
            raise Refused("this address is for a websocket.", reason="bad_request")
        front: Front = self.settings["front"]
        host, user = await self.find_host(), cast("Any", self.current_user)
        headers, own = self.request.headers.get_all(), front.requests.headers(host, user)
        sent = request_head("GET", uri_of(self), headers, own, upgrades=True)
        with self.settings[self.registry].place_for(self):
            try:
                upstream, answer = await open_websocket(host.address, sent, front.requests.context)
            except WebsocketRefused as refused:
                if refused.code == HTTPStatus.FORBIDDEN:
                    raise no_trust(host) from None
                pass_on(self, refused)
                return
            except OSError as error:
                raise HostAway(f"{host.name} does not answer ({error}); its sessions run on, try again.") from None
            self._splice = Splice(cast("IOStream", self.detach()), upstream, answer)
            await self._splice.run()

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """End the connection; *code* and *reason* would be the host's to say."""
        if self._splice is not None:
            self._splice.close()


async def _list_ports(handler: JupyterHandler) -> dict[str, list[dict[str, Any]]]:
    """Return the ports of the requesting user's programs, by host."""
    ports_of(handler)  # which refuses where they are switched off
    front, user = handler.settings["front"], handler.current_user
    hosts = [host for host in front.hosts.answering() if user.username in host.users]
    answers = await front.requests.fetch_all(hosts, GatewayUser(user.username), _PORTS)
    return {name: answer["ports"] for name, answer in answers.items()}


class FrontPortsHandler(FrontHandler):
    """``/sharedkernel/api/ports``: the requesting user's programs that listen on the loopback of any host."""

    @handlers.for_users
    async def get(self) -> None:
        """Return what the hosts list, and the host of each."""
        listed = await _list_ports(self)
        found = [{**entry, "host": name} for name, entries in sorted(listed.items()) for entry in entries]
        self.finish(json.dumps({"ports": found}))


class PortSpliceHandler(SpliceHandler):
    """``/sharedkernel/api/ports/PORT``: a websocket, joined to the host on which a program of the user's listens."""

    registry = "open_ports"

    async def find_host(self) -> Host:
        """Return the first host with a program of the user's that listens on the port.

        Raises
        ------
        Refused
            When there is none.
        """
        port = int(self.path_kwargs["port"])
        for name, entries in sorted((await _list_ports(self)).items()):
            if any(entry["port"] == port for entry in entries):
                return cast("Host", self.settings["front"].hosts.find(name))
        raise Refused(f"no program of yours listens on port {port} of any host; start it first.", reason="no_port")


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
            for device in answers[host]["devices"]
        ]


class FrontHistoryHandler(FrontHandler):
    """``/sharedkernel/api/history``: the last hour of the devices of all hosts, at most :data:`_MAX_HISTORIES`."""

    @handlers.for_users
    async def get(self) -> None:
        """Return the values of all devices that answer, which every user may see: asked for once for all pages."""
        asked, answer = self.settings.get("front_history", (-math.inf, None))
        if answer is None or time.monotonic() > asked + STEP_SECONDS:
            answer = asyncio.ensure_future(self._ask())
            self.settings["front_history"] = (time.monotonic(), answer)
        self.finish(await asyncio.shield(answer))

    async def _ask(self) -> str:
        hosts, left = {}, _MAX_HISTORIES
        for host in self.front.hosts.answering():
            left -= len(host.devices)
            if left >= 0:
                hosts[host.name] = host
        answers = await self.front.requests.fetch_all(hosts.values(), self.current_user, uri_of(self))
        devices = [
            {**device, "name": _device_name(hosts[name], device["name"] if len(answer["devices"]) > 1 else None)}
            for name, answer in sorted(answers.items())
            for device in answer["devices"]
        ]
        end = max((answer["end"] for answer in answers.values()), default=0.0)
        return json.dumps({"end": end, "step_seconds": STEP_SECONDS, "devices": devices})


class FrontShelvesHandler(FrontHandler):
    """``/sharedkernel/api/shelves``: the entries on the shelves of all hosts, everybody's or one user's."""

    @web.authenticated
    async def get(self, user: str = "", name: str = "") -> None:
        """Return the entries that the hosts list, and a sentence for each host and device that does not answer."""
        hosts = {host.name: host for host in self.front.hosts.all()}
        away = {name: host.why_away() for name, host in hosts.items() if not host.is_answering}
        shelves: list[dict[str, Any]] = []
        for name, answer in (await self._ask([hosts[name] for name in hosts if name not in away], "GET", "")).items():
            if isinstance(answer, HostAway):
                away[name] = str(answer)
            elif answer.code == HTTPStatus.SERVICE_UNAVAILABLE:
                away[name] = json.loads(answer.body)["message"]
            elif answer.code != HTTPStatus.OK:  # a user's mistake, which all hosts refuse
                pass_on(self, answer)
                return
            else:
                body = json.loads(answer.body)
                away |= {_device_name(hosts[name], device): why for device, why in body["away"].items()}
                shelves += [
                    {**shelf, "device": _device_name(hosts[name], shelf["device"])} for shelf in body["shelves"]
                ]
        shelves.sort(key=lambda shelf: (shelf["user"], shelf["device"]))
        self.finish(json.dumps({"shelves": shelves, "away": away}))

    async def _ask(self, hosts: Iterable[Host], method: str, query: str) -> dict[str, HTTPResponse | HostAway]:
        self.front.any_host()
        path = uri_of(self).partition("?")[0]
        return await self.front.requests.fetch_from_each(
            hosts, self.current_user, method, path + query, seconds=_SHELVES_ANSWER
        )


class FrontShelfHandler(FrontShelvesHandler):
    """``/sharedkernel/api/shelves/USER`` and ``/USER/NAME``: entries of one user on all hosts."""

    @web.authenticated
    async def delete(self, user: str, name: str = "") -> None:
        """Remove them on all hosts; with ``?device=HOST/DEVICE``, as the status names it, on that device only."""
        wanted = self.get_query_argument("device", None)
        named, _, device = (wanted or "").partition("/")
        if wanted is not None and not device:
            raise Refused(f"there is no device {wanted!r}; name one as in h2/cuda:1.", reason="bad_request")
        hosts = {host.name: host for host in ([self.front.hosts.find(named)] if named else self.front.hosts.all())}
        for host in hosts.values():
            if not host.is_answering or not host.devices:
                hint = "" if named else " (`device` names one of another host to do it there)"
                why = f"no executor of {host.name} answers." if host.is_answering else host.why_away()
                raise HostAway(f"nothing was taken off{hint}: {why}")
        answers = await self._ask(hosts.values(), "DELETE", f"?{urlencode({'device': device})}" if device else "")
        done: dict[str, Any] = {}
        failed: list[str] = []
        for host_name, answer in answers.items():
            if isinstance(answer, HostAway):
                failed.append(str(answer))
            elif answer.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                failed.append(json.loads(answer.body)["message"])
            elif answer.code == HTTPStatus.OK:
                done[host_name] = json.loads(answer.body)
        if failed:
            raise HostAway(f"taken off on {', '.join(done)} alone: {failed[0]}" if done else failed[0])
        if not done:  # the request is wrong, or no host has such an entry
            pass_on(self, cast("HTTPResponse", next(iter(answers.values()))))
            return
        removed = [
            {**entry, "device": _device_name(hosts[each], entry["device"])}
            for each, body in done.items()
            for entry in body["removed"]
        ]
        used = sum(body["used_bytes"] for body in done.values())
        self.finish(json.dumps({"user": user, "removed": removed, "used_bytes": used}))


def _device_name(host: Host, device: str | None) -> str:
    """Return what the status calls a host's *device*; None: its only one."""
    return f"{host.name}/{device}" if device else str(next((each.id for each in host.devices), host.name))


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


_PORTS, _KERNEL = "/sharedkernel/api/ports", kernels._kernel_id_regex
default_handlers: list[Any] = [
    (r"/api/kernels", ListedHandler),
    (rf"/api/kernels/{_KERNEL}", ForwardedHandler),
    (rf"/api/kernels/{_KERNEL}/{kernels._kernel_action_regex}", ForwardedHandler),
    (rf"/api/kernels/{_KERNEL}/channels", SpliceHandler),
    (r"/api/sessions", ListedHandler),
    (rf"/api/sessions/{sessions._session_id_regex}", ForwardedHandler),
    (r"/api/kernelspecs(?:/[^/]+)?", ForwardedHandler),
    (r"/sharedkernel/api/status", handlers.StatusHandler),
    (rf"/sharedkernel/api/sessions/{_KERNEL}/(?:offload|end-programs|attach|ask-for-room)", ForwardedHandler),
    (r"/sharedkernel/api/quotas", FrontQuotasHandler),
    (r"/sharedkernel/api/policy", FrontPolicyHandler),
    (r"/sharedkernel/api/events", StatusFeedHandler),
    (_PORTS, FrontPortsHandler),
    (rf"{_PORTS}/(?P<port>\d{{1,5}})", PortSpliceHandler),
    (r"/sharedkernel/api/hosts", HostsHandler),
    (r"/sharedkernel/api/hosts/([A-Za-z0-9.-]+)", HostHandler),
    (r"/sharedkernel/api/timeline", FrontTimelineHandler),
    (r"/sharedkernel/api/history", FrontHistoryHandler),
    (r"/sharedkernel/api/shelves", FrontShelvesHandler),
    (r"/sharedkernel/api/shelves/(?P<user>[^/]+)", FrontShelfHandler),
    (r"/sharedkernel/api/shelves/(?P<user>[^/]+)/(?P<name>[^/]+)", FrontShelfHandler),
    (r"/sharedkernel/api/audit", FrontAuditTailHandler),
    (PATH, RegistrationHandler),
    (r"/healthz", HealthHandler),
    (r"/readyz", FrontReadyHandler),
]
