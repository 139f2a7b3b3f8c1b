"""``sharedkernel quota`` and ``policy``: what each user may use, by which policy the devices serve, and changing both.

The gateway keeps what is changed in memory (`gateway/config/quotas.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from rich.console import Console, RenderableType
from traitlets import Bool, Unicode

from sharedkernel.cli.base import NO_LIMIT, LimitCommandApp, ReportCommandApp, fail
from sharedkernel.client.gateway.connection import POLICY_PATH, QUOTAS_PATH
from sharedkernel.status.tables import cell, new_table, number, text
from sharedkernel.status.text import safe_text
from sharedkernel.units import format_bytes, format_seconds

_DURATIONS = ("offload_after", "cull_after", "linger")


class QuotaApp(LimitCommandApp):
    """Shows limits, and changes them for an admin."""

    name = "quota"
    description = """
        Show what you may use; for an admin, what everybody may, and change it.

        A change is in force at once, and until the gateway restarts or reads its configuration again: what should stay
        belongs there. An amount of "none" is no limit.
    """
    examples = """
        sharedkernel quota                               # yours, or everybody's if you are an admin
        sharedkernel quota ada                           # and where each value comes from
        sharedkernel quota ada --memory 8GiB --share 2   # for admins, as all below
        sharedkernel quota --group students --sessions 2 --cull-after 2h
        sharedkernel quota --default --memory 25%
        sharedkernel quota ada --reset                   # as the configuration has it
    """
    accepts_arguments = True

    group = Unicode(help="Change it for this group instead of for a user.")
    default = Bool(False, help="Change it for all who have no value of their own or of a group.")
    reset = Bool(False, help="Undo changes made in this way: for one user or group, or all of them.")

    def start(self) -> None:
        """Do what the line says.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer, or refuses.
        """
        if len(self.extra_args) > 1:
            fail(f"{self.extra_args[1]!r} is not understood; name one user.", status=2)
        user = self.extra_args[0] if self.extra_args else ""
        changes = self.limits()
        named = [bool(user), bool(self.group), self.default]
        if sum(named) > 1:
            fail("a user, --group and --default do not go together; say which.", status=2)
        if self.reset:
            if changes or self.default:
                fail("--reset goes with a user, with --group or alone.", status=2)
            query = {"user": user} if user else {"group": self.group} if self.group else {}
            answer = self.ask(f"{QUOTAS_PATH}?{urlencode(query)}" if query else QUOTAS_PATH, "DELETE")
        elif changes:
            if not any(named):
                fail("whose limits? Name a user, --group NAME or --default.", status=2)
            body: dict[str, Any] = {"default": changes}
            if not self.default:
                body = {"users": {user: changes}} if user else {"groups": {self.group: changes}}
            answer = self.ask(QUOTAS_PATH, "PUT", body)
        else:
            if self.group or self.default:
                fail("--group and --default go with a change, such as --memory 8GiB.", status=2)
            answer = self.ask(QUOTAS_PATH)
        self.show_notes(answer)
        self._show(answer, user)

    def _show(self, answer: Mapping[str, Any], user: str) -> None:
        users: dict[str, Any] = answer["users"]
        is_known = user in users
        if user and not is_known and not self.reset:
            fail(f"no token, session or limit of {user!r} is known here, or you are no admin, who alone sees others'.")
        own = {user: users[user]} if is_known else {}
        if self.print_json({"users": own} if user else answer):
            return
        if user and not is_known:
            print(f"No limits are set for {user} any more.")  # noqa: T201
            return
        table = user_quota_table(users[user]) if user else quotas_table(users)
        Console(highlight=False).print(table)


def quotas_table(users: Mapping[str, Any]) -> RenderableType:
    """Return the limits of several users, one row each."""
    headings = {"memory": 8, "share": 5, "sessions": 8, "priority": 8, "offload": 8, "cull": 8, "linger": 8}
    table = new_table(text("user"), *(number(name, width) for name, width in headings.items()))
    for name, limits in users.items():
        table.add_row(cell(name, "bold"), *(cell(limit_words(key, limits[key]["value"])) for key in limits))
    return table


def user_quota_table(limits: Mapping[str, Any]) -> RenderableType:
    """Return the limits of one user, one row each, with where they come from."""
    table = new_table(text("limit"), number("value", 8), text("from", 2))
    for key, limit in limits.items():
        source = limit["source"].replace("put:", "set by hand:", 1)
        table.add_row(cell(key), cell(limit_words(key, limit["value"])), cell(f"  {source}"))
    return table


def limit_words(key: str, value: Any) -> str:
    """Return the value of a limit for people."""
    if value is None:
        return "never" if key in _DURATIONS else NO_LIMIT
    if isinstance(value, str):
        return value
    if key == "memory":
        return format_bytes(value)
    return format_seconds(value) if key in _DURATIONS else f"{value:g}"


class PolicyApp(ReportCommandApp):
    """Shows the policy, and changes it for an admin."""

    name = "policy"
    description = """
        Show by which policy the devices serve those who wait, or, for an admin, change it.

        A change is in force at once, and until an executor restarts or the gateway reads its configuration again.
    """
    examples = """
        sharedkernel policy
        sharedkernel policy srtf        # for admins
    """
    accepts_arguments = True
    patience = 20.0  # an executor that hangs is waited for by the gateway

    def start(self) -> None:
        """Show or change it.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer, or refuses.
        """
        if len(self.extra_args) > 1:
            fail(f"{self.extra_args[1]!r} is not understood; name one policy.", status=2)
        body = {"policy": self.extra_args[0]} if self.extra_args else None
        answer = self.ask(POLICY_PATH, "PUT" if body else "GET", body)
        if self.print_json(answer):
            return
        for device, policy in answer["devices"].items():
            print(f"{safe_text(device) or 'policy'}: {safe_text(policy)}")  # noqa: T201
        print(f"policies: {', '.join(map(safe_text, answer['policies']))}")  # noqa: T201
        self.show_notes(answer)
