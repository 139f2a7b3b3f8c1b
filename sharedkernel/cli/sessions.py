"""``sharedkernel status``, ``top``, ``sessions``, ``stop`` and ``offload``: who uses what, and acting on sessions.

Sessions go by a short id.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET
from rich.console import Console, Group, RenderableType
from traitlets import Bool, Unicode

from sharedkernel.cli.base import GatewayCommandApp, ReportCommandApp, fail, say
from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import Refused
from sharedkernel.status.document import SessionStatus
from sharedkernel.status.figures import IDLE, MEMORY
from sharedkernel.status.tables import (
    NOTEBOOK,
    OWNER,
    STATE,
    TableColumn,
    figure_column,
    filled,
    place_columns,
    session_notes,
    status_view,
)
from sharedkernel.status.text import NOTHING, safe_text, session_name

#: characters of an id that are shown, where they suffice
_SHORT = 8


class StatusApp(ReportCommandApp):
    """Prints the status document as tables, or as it is."""

    name = "status"
    description = "Show who uses what of the device, and who waits for what."
    examples = """
        sharedkernel status
        sharedkernel status --gateway-url http://127.0.0.1:8585 --token TOKEN
        sharedkernel status --json | python -m json.tool
    """

    about = Unicode(
        help="Show this first where a cluster is too large to show all: a host, a device, a user or a notebook."
    )

    def start(self) -> None:
        """Ask the gateway once and print its answer."""
        status = fetch_status(self.credentials(), about=self.about)
        if self.as_json:
            print(msgspec.json.encode(status).decode())  # noqa: T201
        else:
            Console(highlight=False).print(status_view(status))
            if status.left_out:
                print(status.left_out.sentence())  # noqa: T201


class TopApp(GatewayCommandApp):
    """Shows the status document live, and acts on sessions."""

    name = "top"
    description = """
        Show who uses what of the device, and who waits for what, live. Sort, filter and scroll; offload or stop a
        session of yours, or, as an admin, anybody's, after a question.

        Keys: arrows, PageUp, PageDown, Home and End select; 1, 2 and 3 show sessions, people and lanes; s sorts by the
        next column and r reverses; / filters, Escape shows all again; o offloads and x stops; q or Ctrl-C ends.
    """
    examples = """
        sharedkernel top
        sharedkernel top --gateway-url http://127.0.0.1:8585 --token TOKEN
    """

    def start(self) -> None:
        """Show the tables until the user has seen enough.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer at all: then its address or the token is likely wrong.
        SystemExit
            With 2 where there is no terminal.
        """
        credentials = self.credentials()
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            fail("`top` needs a terminal; `sharedkernel status` prints the same once.", status=2)
        status = fetch_status(credentials)
        # Imported here: no other command needs it, and `--help` does without.
        from sharedkernel.cli.top.screen import TopScreen

        TopScreen(credentials, status).run()


class SessionsApp(ReportCommandApp):
    """Lists sessions."""

    name = "sessions"
    description = """
        List sessions, with ids for `sharedkernel stop` and `sharedkernel offload`.

        The sessions of others have no id and no notebook, unless you are an admin.
    """
    examples = """
        sharedkernel sessions
        sharedkernel sessions --user ada
    """

    user = Unicode(help="Only those of this user.")

    def start(self) -> None:
        """Ask the gateway once and print its answer.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer, or refuses.
        """
        status = fetch_status(self.credentials(), about=self.user)
        shown = [session for session in status.sessions if self.user in ("", session.user)]
        if self.as_json:
            print(msgspec.json.encode(shown).decode())  # noqa: T201
        elif shown:
            Console(highlight=False).print(sessions_by_id(shown, short_ids(status.sessions)))
        else:
            print("No sessions.")  # noqa: T201
        if status.left_out and not self.as_json:
            print(status.left_out.sentence(how="`sharedkernel status --about NAME`"))  # noqa: T201


class _SessionCommandApp(GatewayCommandApp):
    """Base of the commands that do something to sessions."""

    accepts_arguments = True
    #: what it does
    verb: ClassVar[str]

    user = Unicode(help="All sessions of this user, in the place of an id.")

    def start(self) -> None:
        """Do it to each session that the line names, whatever comes of the others, and print a line for each.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer, or refuses.
        """
        self.refuse_empty("user", what="names nobody")
        if bool(self.extra_args) == bool(self.user):
            fail(f"name the sessions to {self.verb} by their ids, or all of one user by --user NAME.", status=2)
        if self.user:
            sessions = fetch_status(self.credentials(), about=self.user).sessions
            chosen = [session for session in sessions if session.user == self.user and session.kernel_id]
            if not chosen:
                fail(f"there is no session of {self.user!r} that you may {self.verb}.")
        else:
            # all are found before the first is touched
            credentials = self.credentials()
            found = (find(word, fetch_status(credentials, about=word).sessions) for word in self.extra_args)
            chosen = list({session.id: session for session in found}.values())
        num_failed = 0
        for session in chosen:
            name = f"{session_name(session)} of {safe_text(session.user)}"
            try:
                print(f"{self.act(session.kernel_id or '')} {name}")  # noqa: T201
            except Refused as refusal:
                num_failed += 1
                say(f"{name}: {refusal}")
        if num_failed:
            sys.exit(1)

    def act(self, kernel_id: str) -> str:
        """Do it to one session; return what was done."""
        raise NotImplementedError


class StopApp(_SessionCommandApp):
    """Ends sessions."""

    name = "stop"
    verb = "stop"
    description = """
        Shut sessions down: your own, or, for an admin, anybody's.

        Cells that run are interrupted. Their users are told, and can bring them back with `%shared attach` for as long
        as their quota lets them linger, unless they are ended with --now.
    """
    examples = """
        sharedkernel sessions
        sharedkernel stop 3f9c2a17
        sharedkernel stop --user ada --now
        sharedkernel stop --programs 3f9c2a17
    """

    now = Bool(False, help="End them for good; they cannot be brought back.")
    programs = Bool(False, help="End only their programs on a GPU; the sessions continue.")

    def act(self, kernel_id: str) -> str:
        """Shut one session down, or end its programs."""
        gateway = Gateway(self.credentials())
        if self.programs:
            gateway.act(kernel_id, "end-programs")
            return "stopped the programs of"
        gateway.end(kernel_id, at_once=self.now)
        return "stopped"


class OffloadApp(_SessionCommandApp):
    """Moves idle sessions' memory off the device."""

    name = "offload"
    verb = "offload"
    description = """
        Move the memory of idle sessions off the device, so that others have it; their next cells bring it back.
    """
    examples = """
        sharedkernel sessions
        sharedkernel offload 3f9c2a17
        sharedkernel offload --user ada
    """

    def act(self, kernel_id: str) -> str:
        """Offload one session."""
        Gateway(self.credentials()).act(kernel_id, "offload")
        return "offloaded"


def short_ids(sessions: Sequence[SessionStatus]) -> dict[str, str]:
    """Return the beginning of each kernel id that no other has, 8 characters at least, by kernel id."""
    ids = [session.kernel_id for session in sessions if session.kernel_id]
    length = _SHORT
    while len({kernel_id[:length] for kernel_id in ids}) < len(set(ids)):
        length += 1
    return {kernel_id: kernel_id[:length] for kernel_id in ids}


def find(word: str, sessions: Sequence[SessionStatus]) -> SessionStatus:
    """Return the one session whose kernel id begins with *word*, or whose notebook has that name.

    Raises
    ------
    SystemExit
        When there is none, or there are several.
    """
    found = [session for session in sessions if session.kernel_id and session.kernel_id.startswith(word)]
    found = found or [session for session in sessions if session.notebook and session_name(session) == word]
    if not found:
        fail(f"there is no session {word!r} among yours; `sharedkernel sessions` lists them.")
    if len(found) > 1:
        ids = short_ids(sessions)
        several = ", ".join(ids[session.kernel_id or ""] for session in found)
        fail(f"{word!r} names several sessions: {several}; say which.")
    return found[0]


def sessions_by_id(sessions: Sequence[SessionStatus], ids: dict[str, str]) -> RenderableType:
    """Return sessions as a table.

    Parameters
    ----------
    sessions
        Those to show.
    ids
        What to call each, by kernel id.
    """
    columns: list[TableColumn[Any]] = [
        TableColumn(
            name="id",
            ratio=1,
            width=max(map(len, ids.values()), default=_SHORT),
            text=lambda session: ids.get(session.kernel_id or "", NOTHING),
        ),
        OWNER,
        replace(NOTEBOOK, text=lambda session: session_name(session) if session.notebook else NOTHING),
        replace(STATE, ratio=3, style=lambda session: ""),
        *place_columns(
            has_devices=any(session.device is not UNSET for session in sessions),
            has_hosts=len({session.host for session in sessions}) > 1,
        ),
        *map(figure_column, (MEMORY, IDLE)),
    ]
    ordered = sorted(sessions, key=lambda session: (session.user, session_name(session)))
    return Group(filled(ordered, columns), *session_notes(session for session in ordered if session.programs))
