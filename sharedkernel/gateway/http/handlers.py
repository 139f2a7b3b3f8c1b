"""The gateway's routes: Jupyter's for kernels and notebook sessions, and its own for status, quotas and policy.

Jupyter's handlers are used with two changes: a refusal is answered with one JSON sentence and an HTTP status, and
logged without a traceback; and starting a kernel uses the client's environment.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar, cast

import msgspec
from jupyter_client.jsonutil import json_default
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler
from jupyter_server.services.kernels import handlers as kernels
from jupyter_server.services.kernels.websocket import KernelWebsocketHandler
from jupyter_server.services.sessions import handlers as sessions
from jupyter_server.utils import url_escape, url_path_join
from tornado import web

from sharedkernel.errors import ConfigError, Refused
from sharedkernel.gateway.auth.audit import AuditedHandler
from sharedkernel.gateway.auth.identity import TokenOnlyIdentity
from sharedkernel.gateway.config.quotas import QUOTA_KEYS, QuotaLevel
from sharedkernel.gateway.errors import ErrorResponseMixin
from sharedkernel.gateway.http import health
from sharedkernel.gateway.http.status_feed import StatusFeedHandler, document_for
from sharedkernel.gateway.http.websocket_registry import JupyterPingMixin
from sharedkernel.gateway.kernels.ending import check_not_ended
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.manager import SessionKernels, kernel_manager_of
from sharedkernel.jupyter.names import EXISTING
from sharedkernel.scheduling.policies.registry import POLICIES
from sharedkernel.units import parse_duration

#: changes of quotas that one line of the audit log has
_MOST_CHANGES = 50


_Method = TypeVar("_Method", bound=Callable[..., Any])


def for_users(method: _Method) -> _Method:
    """Have a handler's *method* serve users alone, as far as the authorizer lets them."""
    return cast("_Method", web.authenticated(authorized(method)))


class KernelsHandler(ErrorResponseMixin, AuditedHandler, kernels.MainKernelHandler):
    """``/api/kernels``."""

    actions: ClassVar[dict[str, str]] = {"POST": "start session"}

    @for_users
    async def get(self) -> None:
        """List the kernels, once those that outlived an earlier gateway are known.

        Stock clients give up a kernel that is not listed: an incomplete list is refused instead.
        """
        manager = kernel_manager_of(self)
        await manager.recovery.gathered()
        manager.check_listed(self.current_user)
        await cast("Awaitable[None]", super().get())

    @for_users
    async def post(self) -> None:
        """Start a session, or return the one that this client has already, which the answer says then."""
        body = read_body(self, {"name": str, "path": str, "env": dict})
        env = body.get("env", {})
        if not all(map(is_text, (*env, *env.values()))):
            raise Refused("`env` holds something that is no text; write names and texts.", reason="bad_request")
        kernel_id = await self.kernel_manager.start_kernel(kernel_name=body.get("name"), path=body.get("path"), env=env)
        self.acted_on = kernel_id
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", url_path_join(self.base_url, "api", "kernels", url_escape(kernel_id)))
        kernel = cast("SessionKernel", self.kernel_manager.get_kernel(kernel_id))
        model = self.kernel_manager.kernel_model(kernel_id) | ({EXISTING: True} if kernel.is_known else {})
        kernel.is_known = True
        self.finish(json.dumps(model, default=json_default))


class KernelHandler(ErrorResponseMixin, AuditedHandler, kernels.KernelHandler):
    """``/api/kernels/ID``."""

    actions: ClassVar[dict[str, str]] = {"DELETE": "end session"}

    @for_users
    async def delete(self, kernel_id: str) -> None:
        """Shut a session down; with ``?linger=0`` it ends at once, even if it is detached already.

        With ``?restart=1`` a new session takes its place, whatever ``linger`` says; earlier gateways heed only that.
        """
        try:
            linger = self.get_query_argument("linger", None)
            seconds = None if linger is None else parse_duration(float(linger) if linger.isdecimal() else linger)
        except ConfigError as error:
            raise Refused(f"`linger`: {error}", reason="bad_request") from None
        manager = kernel_manager_of(self)
        is_restarted = self.get_query_argument("restart", "0") == "1"
        await manager.shut_down(kernel_id, linger=None if is_restarted else seconds, is_restarted=is_restarted)
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()


class KernelActionHandler(ErrorResponseMixin, AuditedHandler, kernels.KernelActionHandler):
    """``/api/kernels/ID/interrupt`` and ``/restart``."""

    actions: ClassVar[dict[str, str]] = {"POST": "{action} session"}


class KernelChannelsHandler(ErrorResponseMixin, AuditedHandler, JupyterPingMixin, KernelWebsocketHandler):
    """``/api/kernels/ID/channels``: the websocket for a session's messages.

    With Jupyter's handler, a client that hangs up while it is being accepted stays attached to its session for ever.
    """

    #: whether it has been attached to the session, and whether the client hung up before
    _was_attached = _has_hung_up = False
    #: whether the gateway has hung up, as on a client that is silent
    was_closed_here = False

    @ws_authenticated
    async def get(self, kernel_id: str) -> None:
        """Accept the websocket; returns when it is closed."""
        manager = kernel_manager_of(self)
        if manager.registry.find(kernel_id) is None:  # whether it can be brought back, executors know
            await manager.recovery.gathered()
        check_not_ended(manager.registry, manager.detached, kernel_id, self.current_user.username)
        with self.settings["open_websockets"].place_for(self):
            await super().get(kernel_id)

    async def open(self, kernel_id: str) -> None:  # type: ignore[override]
        """Attach to the session, unless the client has hung up."""
        if self._has_hung_up:
            self.connection.withdraw()
            self.connection = None
            return
        self._was_attached = True
        self.record_action("attach to session")
        await super().open(kernel_id)

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """Hang up."""
        self.was_closed_here = True
        super().close(code, reason)

    def on_close(self) -> None:
        """Detach from the session."""
        self._has_hung_up = True
        if self._was_attached:
            super().on_close()


class NotebookSessionBodyMixin(ErrorResponseMixin):
    """Checks the request body of a notebook session, on which Jupyter's handlers rely."""

    def get_json_body(self) -> dict[str, Any] | None:
        """Return the body without its null values; None if there is no body.

        Raises
        ------
        Refused
            When a value has the wrong type.
        """
        body = super().get_json_body()
        if body is None:
            return None
        body = checked(body, {"path": str, "name": str, "type": str, "kernel": dict, "notebook": dict})
        for name in body.keys() & {"kernel", "notebook"}:
            body[name] = checked(body[name], {"id": str, "name": str, "path": str})
        return body


class NotebookSessionsHandler(NotebookSessionBodyMixin, AuditedHandler, sessions.SessionRootHandler):
    """``/api/sessions``."""

    actions: ClassVar[dict[str, str]] = {"POST": "start notebook session"}

    def record_action(self, action: str, **details: Any) -> None:
        """Record *action* on the kernel of the notebook session that was started or found, with *details*."""
        manager: Any = self.session_manager
        self.acted_on = manager.kernel_of(self._headers.get("Location", "").rpartition("/")[2])
        super().record_action(action, **details)


class NotebookSessionHandler(NotebookSessionBodyMixin, AuditedHandler, sessions.SessionHandler):
    """``/api/sessions/ID``."""

    actions: ClassVar[dict[str, str]] = {"PATCH": "change notebook session", "DELETE": "end notebook session"}

    async def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Look up the notebook session's kernel: afterwards it may be gone."""
        self.acted_on = self._kernel()
        await super().prepare(*args, **kwargs)

    def record_action(self, action: str, **details: Any) -> None:
        """Record *action* on the notebook session's current kernel, with *details*."""
        if (kernel := self._kernel()) not in (None, self.acted_on):
            details["replaced"] = self.acted_on
            self.acted_on, self._found = kernel, None
        super().record_action(action, **details)

    def _kernel(self) -> str | None:
        manager: Any = self.session_manager
        return manager.kernel_of(self.path_kwargs["session_id"])


class GatewayHandler(ErrorResponseMixin, AuditedHandler, APIHandler):
    """Base of the gateway's own routes."""

    auth_resource = "sharedkernel"

    @property
    def manager(self) -> SessionKernels:
        """The sessions of all executors."""
        return kernel_manager_of(self)

    @property
    def identity(self) -> TokenOnlyIdentity:
        """The identity provider."""
        return cast("TokenOnlyIdentity", self.identity_provider)

    def kernel(self, kernel_id: str) -> SessionKernel:
        """Return a session's kernel."""
        return cast("SessionKernel", self.manager.get_kernel(kernel_id))

    def check_admin(self, what: str) -> None:
        """Raise `Refused`, since only admins *what*, if somebody else asks."""
        if not self.current_user.admin:
            raise Refused(f"only admins {what}.", reason="not_admin")

    def finish_empty(self) -> None:
        """Answer that it is done."""
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()


class StatusHandler(GatewayHandler):
    """``/sharedkernel/api/status``: who uses and who waits for which resources."""

    @for_users
    async def get(self) -> None:
        """Return the status document, as this user may see it; of a large cluster with what ``?about=NAME`` names."""
        status = await self.settings["room_requests"].status()
        shown = document_for(status, self.current_user, self.get_query_argument("about", ""))
        self.finish(msgspec.json.encode(shown))


class OffloadHandler(GatewayHandler):
    """``/sharedkernel/api/sessions/ID/offload``: offload an idle session's memory until its next cell."""

    actions: ClassVar[dict[str, str]] = {"POST": "offload session"}

    @for_users
    async def post(self, kernel_id: str) -> None:
        """Offload the session, and return once the memory is free."""
        await self.kernel(kernel_id).offload()
        self.log.info("%s offloaded session %s", self.current_user.username, kernel_id)
        self.finish_empty()


class ProgramsHandler(GatewayHandler):
    """``/sharedkernel/api/sessions/ID/end-programs``: end a session's programs on the device."""

    actions: ClassVar[dict[str, str]] = {"POST": "end programs"}

    @for_users
    async def post(self, kernel_id: str) -> None:
        """End them, and return once they are gone; the session itself continues."""
        await self.kernel(kernel_id).end_programs()
        self.log.info("%s ended the programs of session %s", self.current_user.username, kernel_id)
        self.finish_empty()


class BringBackHandler(GatewayHandler):
    """``/sharedkernel/api/sessions/ID/attach``: bring back the earlier session of a session's notebook."""

    actions: ClassVar[dict[str, str]] = {"POST": "bring back session"}

    @for_users
    async def post(self, kernel_id: str) -> None:
        """Put the earlier session in this one's place, as ``%shared attach`` does; this one ends."""
        await self.manager.detached.bring_back(self.kernel(kernel_id))
        self.finish_empty()


class QuotasHandler(GatewayHandler):
    """``/sharedkernel/api/quotas``: each user's limits, and the source of each value."""

    actions: ClassVar[dict[str, str]] = {"PUT": "change quotas", "DELETE": "reset quotas"}

    #: what the request has changed, for the audit log
    _changes: Mapping[str, Any] = {}

    def record_action(self, action: str, **details: Any) -> None:
        """Record *action*, with whose quotas changed, and from what to what."""
        super().record_action(action, **self._changes, **details)

    @for_users
    async def get(self) -> None:
        """Return the requesting user's limits; an admin gets all users'."""
        self.finish(json.dumps(self._limits()))

    def _limits(self) -> dict[str, Any]:
        user = self.current_user
        users = {user.username}
        if user.admin:
            users |= self.manager.rules.users() | (self.identity.token_owners() or set())
        return {"users": {name: self.manager.rules.quotas.explain(name) for name in sorted(users)}}

    @for_users
    async def put(self) -> None:
        """Override the configuration's quotas until it is read again; for admins.

        What was put before stays, but for the same keys; with ``?replace=true`` nothing of it does. The answer has
        `notes`, if something about the change may not be as it was meant.
        """
        self.check_admin("may change quotas")
        body = read_body(self, {"default": dict, "groups": dict, "users": dict})
        before = {user: self.manager.rules.quotas.explain(str(user)) for user in body.get("users", {})}
        try:
            level = self.manager.rules.quotas.put(body, replaces=self.get_query_argument("replace", "") == "true")
        except ConfigError as error:
            raise Refused(f"nothing was changed: {error}", reason="bad_request") from None
        self._changes = {"changes": _describe_changes(level, before)[:_MOST_CHANGES]}
        self.log.info("%s changed quotas: %s", self.current_user.username, self.request.body.decode())
        notes = await self.apply_change()
        notes += self.manager.rules.ineffective(level.by_whom())
        if (known := self.identity.token_owners()) is not None:
            absent = level.users.keys() - self.manager.rules.present() - known
            notes += [f"no token belongs to {user}; check the name." for user in sorted(absent)]
        self._answer(notes)

    @for_users
    async def delete(self) -> None:
        """Undo such overrides: those of ``?user=`` or ``?group=``, of them only ``&key=``, or all; for admins."""
        self.check_admin("may change quotas")
        user, group, key = (self.get_query_argument(name, None) for name in ("user", "group", "key"))
        if key is not None and (key not in QUOTA_KEYS or not (user or group)):
            sentence = f"a key is one of {', '.join(QUOTA_KEYS)}, and is of a user or a group that is named with it."
            raise Refused(sentence, reason="bad_request")
        self.manager.rules.quotas.withdraw(user=user, group=group, key=key)
        whose = user or (f"group {group}" if group else "everybody")
        self._changes = {"of": f"{whose}: {key}" if key else whose}
        self.log.info("%s reset the quotas of %s", self.current_user.username, self._changes["of"])
        self._answer(await self.apply_change())

    async def apply_change(self) -> list[str]:
        """Have the executors apply the quotas, which have changed; return notes on what may not be as it was meant."""
        await self.manager.rules.send_all_limits()
        return []

    def _answer(self, notes: list[str]) -> None:
        self.finish(json.dumps(self._limits() | ({"notes": notes} if notes else {})))


def _describe_changes(level: QuotaLevel, before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return each value that was put, as ``grace: memory 50% to 2GiB``; *before* has what held for users."""
    changes = []
    for whose, entry in level.by_whom().items():
        for key, value in entry.items():
            old = f"{before[whose][key]['value']} to " if whose in before else ""
            changes.append(f"{whose}: {key} {old}{value}")
    return changes


class PolicyHandler(GatewayHandler):
    """``/sharedkernel/api/policy``: the policy that ranks sessions."""

    actions: ClassVar[dict[str, str]] = {"PUT": "change policy"}

    @for_users
    async def get(self) -> None:
        """Return the policy (null if devices differ), that of each device, and the names of all policies."""
        devices = await self.manager.rules.policies()
        common = next(iter(devices.values())) if len(set(devices.values())) == 1 else None
        self.finish(json.dumps({"policy": common, "devices": devices, "policies": list(POLICIES)}))

    @for_users
    async def put(self) -> None:
        """Apply another policy until the executors end; for admins."""
        self.check_admin("may change the policy")
        policy = read_body(self, {"policy": str}).get("policy")
        if policy is None:
            raise Refused('no `policy` is named; send one such as {"policy": "fair"}.', reason="bad_request")
        await self.manager.rules.set_policy(policy)
        self.log.info("%s set the policy to %s", self.current_user.username, policy)
        await cast("Awaitable[None]", self.get())


def read_body(handler: APIHandler, kinds: dict[str, type]) -> dict[str, Any]:
    """Return the request's JSON object without its null values; {} if there is no body.

    Parameters
    ----------
    handler
        Handles the request.
    kinds
        Types of values by name; other names may have any value.

    Raises
    ------
    Refused
        When the body is no JSON object, or a value has the wrong type.
    """
    body = handler.get_json_body()
    return {} if body is None else checked(body, kinds)


def is_text(value: Any) -> bool:
    """Whether *value* is text that can be encoded; JSON can contain lone surrogates, which cannot."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def checked(value: Any, kinds: dict[str, type]) -> dict[str, Any]:
    """Return a JSON object without its null values.

    Parameters
    ----------
    value
        The object.
    kinds
        Types of values by name; other names may have any value.

    Raises
    ------
    Refused
        When it is no JSON object, or a value has the wrong type.
    """
    if not isinstance(value, dict):
        raise Refused("the request's body is no JSON object, or one in it is none.", reason="bad_request")
    found = {name: part for name, part in value.items() if part is not None}
    for name, kind in kinds.items():
        part = found.get(name, kind())
        if not isinstance(part, kind) or (isinstance(part, str) and not is_text(part)):
            raise Refused(
                f"`{name}` is {part!r}; it should be {'text' if kind is str else 'a JSON object'}.",
                reason="bad_request",
            )
    return found


#: a kernel's id in a route, by the name under which the authorizer looks at it
KERNEL_ROUTE = kernels._kernel_id_regex
default_handlers = [
    (r"/api/kernels", KernelsHandler),
    (rf"/api/kernels/{KERNEL_ROUTE}", KernelHandler),
    (rf"/api/kernels/{KERNEL_ROUTE}/{kernels._kernel_action_regex}", KernelActionHandler),
    (rf"/api/kernels/{KERNEL_ROUTE}/channels", KernelChannelsHandler),
    (r"/api/sessions", NotebookSessionsHandler),
    (rf"/api/sessions/{sessions._session_id_regex}", NotebookSessionHandler),
    (r"/sharedkernel/api/status", StatusHandler),
    (rf"/sharedkernel/api/sessions/{KERNEL_ROUTE}/offload", OffloadHandler),
    (rf"/sharedkernel/api/sessions/{KERNEL_ROUTE}/end-programs", ProgramsHandler),
    (rf"/sharedkernel/api/sessions/{KERNEL_ROUTE}/attach", BringBackHandler),
    (r"/sharedkernel/api/quotas", QuotasHandler),
    (r"/sharedkernel/api/policy", PolicyHandler),
    (r"/sharedkernel/api/events", StatusFeedHandler),
    *health.default_handlers,
]
