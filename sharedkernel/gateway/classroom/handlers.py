"""An admin's requests about classes, and what opens an invitation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, cast

import msgspec
from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.utils import url_path_join

from sharedkernel.cli.roster import parse_pasted
from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.hub import HubUsers
from sharedkernel.gateway.auth.identity import TokenUsers
from sharedkernel.gateway.classroom.classes import MOST_MEMBERS, ClassChange, Classes, NewPeople
from sharedkernel.gateway.config.classes import ONLY_CLASS
from sharedkernel.gateway.http.handlers import GatewayHandler, for_users, read_body
from sharedkernel.gateway.http.server import INVITATION_PATH
from sharedkernel.gateway.page.handlers import PageHandler, set_secret_cookie, start_page_session
from sharedkernel.gateway.page.wheel import installation

T = TypeVar("T")


class ClassesHandler(GatewayHandler):
    """Base of an admin's routes."""

    #: what the request asks for, for the audit log
    _asked: Mapping[str, Any] = {}

    def record_action(self, action: str, **details: Any) -> None:
        """Record *action*, with the class, the people and the end that the request names."""
        super().record_action(action, **self._asked, **details)

    def _classes(self) -> Classes:
        self.check_admin("see and change classes, and add people")
        if "front" in self.settings:
            raise Refused("a front of a cluster has no classes; each host has its own.", reason="not_allowed")
        return cast("Classes", self.settings["classes"])

    def _wanted(self, kind: type[T]) -> T:
        try:
            wanted = msgspec.convert(read_body(self, {}), kind)
        except msgspec.ValidationError as error:
            raise Refused(f"the request cannot be used: {error}.", reason="bad_request") from None
        asked = {name: value for name, value in msgspec.to_builtins(wanted).items() if value and name != "limits"}
        if users := asked.get("users"):
            asked["users"] = users[:MOST_MEMBERS]
        self._asked = {**self._asked, **asked}
        return wanted


class ClassHandler(ClassesHandler):
    """``/sharedkernel/api/class``: classes, for admins; ``?group=`` names one where there are several."""

    actions: ClassVar[dict[str, str]] = {
        "PUT": "begin class",
        "POST": "invite to class",
        "PATCH": "change class",
        "DELETE": "end class",
    }

    @for_users
    async def get(self) -> None:
        """Return all classes by name, and the named or only one; null if there is none."""
        found, name = self._classes().describe(), self._group()
        only = next(iter(found.values())) if name is None and len(found) == 1 else found.get(name or "")
        self.finish(msgspec.json.encode({"class": only, "classes": found}))

    @for_users
    async def put(self) -> None:
        """Begin a class, and return it with the codes of its invitations."""
        classes, name = self._classes(), self._named(self._group() or ONLY_CLASS)
        if not isinstance(self.identity, TokenUsers | HubUsers):
            sentence = "this gateway has one user, and a class has more; start it with `--identity tokens` or a hub's."
            raise Refused(sentence, reason="not_allowed")
        codes = await classes.begin(name, wanted := self._wanted(ClassChange), self.current_user.username)
        self._asked = {**self._asked, "limits": wanted.limits}  # which are checked now
        await self._finish_changed(classes, name, codes)

    @for_users
    async def post(self) -> None:
        """Invite users, those of the class again, or move the end; return the class with the codes."""
        classes = self._classes()
        name = self._named(classes.name_of(self._group()))
        await self._finish_changed(classes, name, await classes.change(name, self._wanted(ClassChange)))

    patch = post

    @for_users
    async def delete(self) -> None:
        """End the class, and return how many sessions ended and how many are left (null: not known), also in words."""
        classes = self._classes()
        name = self._named(classes.name_of(self._group()))
        ended, left = await classes.end(name)
        self.finish(msgspec.json.encode({"ended": ended, "left": left, "message": _outcome(name, ended, left)}))

    def _named(self, name: str) -> str:
        self._asked = {"class": name}
        return name

    def _group(self) -> str | None:
        return self.get_query_argument("group", None)

    async def _finish_changed(self, classes: Classes, name: str, codes: Mapping[str, str]) -> None:
        hub, rules = self.identity, self.manager.rules
        await rules.send_all_limits()
        found = classes.describe().get(name, {})
        notes = rules.ineffective({"the class": found.get("limits", {})})
        url = hub.public_url if isinstance(hub, HubUsers) else None
        answer = {"class": found, "codes": codes, "invitation_path": INVITATION_PATH, "hub_url": url, "notes": notes}
        self.set_header("Cache-Control", "no-store")
        self.finish(msgspec.json.encode(answer))


class PeopleHandler(ClassesHandler):
    """``/sharedkernel/api/people``: people of no class, for admins."""

    actions: ClassVar[dict[str, str]] = {"POST": "add people"}

    @for_users
    async def post(self) -> None:
        """Let newcomers in, and return their tokens, which have no end, by user."""
        tokens = await self._classes().add(self._wanted(NewPeople))
        self.set_header("Cache-Control", "no-store")
        self.finish(msgspec.json.encode({"tokens": tokens}))


class RosterHandler(ClassesHandler):
    """``/sharedkernel/api/roster``: reads a roster that an admin has pasted, as the command reads a file."""

    @for_users
    async def post(self) -> None:
        """Return the names of its users; nothing changes."""
        classes, text = self._classes(), read_body(self, {"text": str}).get("text", "")
        users = [person.user for person in parse_pasted(text)]
        classes.check_names(users)
        self.finish(msgspec.json.encode({"users": users}))


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


class InvitedHandler(GatewayHandler):
    """Base of the routes that take an invitation's code in their body; wrong ones count as wrong tokens do."""

    async def _checked(self, check: Callable[[str, str], T | None]) -> T:
        """Return what *check* returns for the code, and for the key that this browser has for it."""
        self.set_header("Cache-Control", "no-store")
        code = read_body(self, {"code": str}).get("code", "")
        key = self.get_cookie(_cookie_of(code)) or ""

        async def checked(code: str) -> T | None:
            return check(code, key)

        found = await self.identity.check_secret(code, self.request.remote_ip or "", checked, "invitation")
        if found is None:
            raise Refused(
                "This invitation is not known here: a newer one was made for the same person, its class is over, or "
                "the link is incomplete. Use the newest link, or ask for another.",
                reason="wrong_invitation",
            )
        self._code = code
        return found


class LookHandler(InvitedHandler):
    """``/sharedkernel/page/invitation/look``: returns what an invitation is for, and leaves it as it is."""

    @allow_unauthenticated
    async def post(self) -> None:
        """Return whose it is, of which class, by whom, until when, and whether this browser used it."""
        self.finish(msgspec.json.encode(await self._checked(self.settings["classes"].look)))


class AdmissionHandler(InvitedHandler):
    """``/sharedkernel/page/invitation/accept``: exchanges a code for a token, once, or again in the same browser."""

    @allow_unauthenticated
    async def post(self) -> None:
        """Return a token and the command that connects a machine; the browser is signed in from now on."""
        user, token, until, key = await self._checked(self.settings["classes"].admit)
        self.settings["audit_log"].record("join class", user=user, address=self.request.remote_ip)
        path = url_path_join(self.base_url, INVITATION_PATH)
        set_secret_cookie(self, _cookie_of(self._code), key, path=path, expires=until, samesite="Strict")
        start_page_session(self, user, token)
        install = await installation(self, "--token", token)
        self.finish(msgspec.json.encode({"user": user, "until": until, **install._asdict()}))


def _outcome(name: str, ended: int, left: int | None) -> str:
    """Return in words what the end of a class has ended, and what is left."""
    what = "class" if name == ONLY_CLASS else f"class {name}"
    sentence = f"The {what} is over; {_sessions(ended)} ended."
    if left == 0:
        return sentence
    rest = "Sessions and shelves" if left is None else _sessions(left)
    return f"{sentence} {rest} on a device whose executor does not answer: they end when it does, within ten minutes."


def _sessions(count: int) -> str:
    return f"{count} session{'' if count == 1 else 's'}"


def _cookie_of(code: str) -> str:
    """Return the name of an invitation's cookie, from the public part of its code."""
    return "sharedkernel-invitation-" + re.sub(r"[^0-9a-f]", "", code.partition("-")[0])[:8]


default_handlers = [
    (r"/sharedkernel/api/class", ClassHandler),
    (r"/sharedkernel/api/people", PeopleHandler),
    (r"/sharedkernel/api/roster", RosterHandler),
    (rf"/{INVITATION_PATH}", InvitationHandler),
    (rf"/{INVITATION_PATH}/look", LookHandler),
    (rf"/{INVITATION_PATH}/accept", AdmissionHandler),
]
