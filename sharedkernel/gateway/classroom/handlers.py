"""An admin's requests about the class, and what opens an invitation."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, ClassVar

from jupyter_server.auth.decorator import allow_unauthenticated, authorized
from tornado import web

from sharedkernel.errors import ConfigError, Refused
from sharedkernel.gateway.auth.hub import HubUsers
from sharedkernel.gateway.auth.identity import TokenUsers
from sharedkernel.gateway.classroom.classroom import Classroom
from sharedkernel.gateway.http.handlers import GatewayHandler, read_body
from sharedkernel.gateway.http.request_guard import INVITATION_PATH
from sharedkernel.gateway.kernels.manager import kernel_manager_of
from sharedkernel.gateway.page.page_handler import PageHandler, start_page_session
from sharedkernel.gateway.page.wheel import installation


class ClassHandler(GatewayHandler):
    """``/sharedkernel/api/class``: the class; for admins."""

    actions: ClassVar[dict[str, str]] = {
        "PUT": "begin class",
        "POST": "invite to class",
        "PATCH": "change class",
        "DELETE": "end class",
    }

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return the class; null if there is none."""
        self.finish(json.dumps({"class": self._classroom().describe()}))

    @web.authenticated
    @authorized
    async def put(self) -> None:
        """Begin a class, and return it with the codes of its invitations."""
        classroom, body = self._classroom(), read_body(self, {"limits": dict, "until": str})
        if not isinstance(self.identity_provider, TokenUsers | HubUsers):
            raise Refused(
                "this gateway has one user, and a class has more; start it with `--identity tokens` or with a hub's "
                "users.",
                reason="not_allowed",
            )
        users, until = _users_in(body), _moment_in(body)
        try:
            codes = await classroom.begin(
                users, body.get("limits", {}), until, allow_known=body.get("allow_known") is True
            )
        except ConfigError as error:
            raise Refused(f"nothing was changed: {error}", reason="bad_request") from None
        self.log.info("%s began a class of %d", self.current_user.username, len(users))
        rules = kernel_manager_of(self).rules
        await rules.send_all_limits()
        limits = classroom.record.limits if classroom.record is not None else {}
        self._finish_invited(classroom, codes, rules.ineffective({"the class": limits}))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Invite users, those of the class again; return the class with the codes."""
        classroom, body = self._classroom(), read_body(self, {"replaces": bool})
        known, replaces = body.get("allow_known") is True, body.get("replaces")
        codes = await classroom.invite(_users_in(body), allow_known=known, replaces=replaces)
        await kernel_manager_of(self).rules.send_all_limits()
        self._finish_invited(classroom, codes)

    @web.authenticated
    @authorized
    async def patch(self) -> None:
        """Move the class's end, and return the class."""
        classroom = self._classroom()
        classroom.move_end(_moment_in(read_body(self, {"until": str})))
        self.finish(json.dumps({"class": classroom.describe()}))

    @web.authenticated
    @authorized
    async def delete(self) -> None:
        """End the class, and return how many sessions ended and how many are left (null: not known)."""
        done = await self._classroom().end()
        self.finish(json.dumps({"ended": done.ended, "left": done.left}))

    def _classroom(self) -> Classroom:
        if not self.current_user.admin:
            raise Refused("only admins see and change the class.", reason="not_admin")
        if "front" in self.settings:
            raise Refused("a front of a cluster has no classes; each host has its own.", reason="not_allowed")
        classroom: Classroom = self.settings["classroom"]
        return classroom

    def _finish_invited(self, classroom: Classroom, codes: dict[str, str], notes: Sequence[str] = ()) -> None:
        hub = self.identity_provider
        self.set_header("Cache-Control", "no-store")
        self.finish(
            json.dumps(
                {
                    "class": classroom.describe(),
                    "codes": codes,
                    "invitation_path": INVITATION_PATH,
                    "hub_url": hub.public_url if isinstance(hub, HubUsers) else None,
                    "notes": notes,
                }
            )
        )


class InvitationHandler(PageHandler):
    """``/sharedkernel/page/invitation``: what an invitation's link opens.

    The code is in the address's fragment, which a browser sends to nobody, and is sent in the body of a request once
    its user agrees: programs that look where a link leads do not use it up.
    """

    @allow_unauthenticated
    async def get(self) -> None:
        """Serve the page, the same for every code."""
        self.xsrf_token  # noqa: B018  # sets the cookie that the page sends back with the code
        self.finish_script('<div id="invitation"></div>')


class AdmissionHandler(GatewayHandler):
    """``/sharedkernel/page/invitation/accept``: exchanges a code for a token, once."""

    @allow_unauthenticated
    async def post(self) -> None:
        """Return a token and the command that connects a machine; the browser is signed in from now on."""
        self.set_header("Cache-Control", "no-store")
        code, classroom = read_body(self, {"code": str}).get("code", ""), self.settings["classroom"]
        identity: Any = self.identity_provider
        admission = await identity.check_code(code, self.request.remote_ip or "", classroom.admit)
        if admission is None:
            raise Refused(
                "This invitation is not known here: a newer one was made for the same person, its class is over, or "
                "the link is incomplete. Use the newest link, or ask for another.",
                reason="wrong_invitation",
            )
        self.settings["audit_log"].record("join class", user=admission.user, address=self.request.remote_ip)
        start_page_session(self, admission.user, admission.token)
        install = await installation(self, "--token", admission.token)
        self.finish(
            json.dumps(
                {
                    "user": admission.user,
                    "until": admission.until.astimezone(datetime.UTC).isoformat(timespec="seconds"),
                    **install.as_json(),
                }
            )
        )


def _users_in(body: dict[str, Any]) -> list[str]:
    users = body.get("users")
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise Refused("`users` is no list of names.", reason="bad_request")
    return users


def _moment_in(body: dict[str, Any]) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(body.get("until", ""))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Refused("`until` is no date and time with a time zone, as ISO 8601 has it.", reason="bad_request")
    return moment


default_handlers = [
    (r"/sharedkernel/api/class", ClassHandler),
    (rf"/{INVITATION_PATH}", InvitationHandler),
    (rf"/{INVITATION_PATH}/accept", AdmissionHandler),
]
