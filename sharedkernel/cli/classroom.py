"""``sharedkernel class``: begins a class, invites its users, shows it, moves its end and ends it.

The gateway decides; here are the roster, the links, and words.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from rich.console import Console
from traitlets import Bool, Unicode

from sharedkernel.cli.base import LimitCommandApp, fail
from sharedkernel.cli.quota import limit_words
from sharedkernel.cli.roster import Person, read_roster
from sharedkernel.client.gateway.connection import CLASS_PATH
from sharedkernel.status.tables import cell, new_table, number, text
from sharedkernel.status.text import safe_text
from sharedkernel.units import parse_expiry

#: what is no roster
_WORDS = ("status", "list", "invite", "until", "end")
_USE = "use `class ROSTER --until TIME`, `class status`, `class invite NAME...`, `class until TIME` or `class end`."
#: the name of a class that is given none
_ONLY = "class"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ClassApp(LimitCommandApp):
    """Runs a class."""

    name = "class"
    description = """
        Run a class: users for some hours, each with an invitation, limits and tokens that end together.

        ROSTER is a file with one name a line, or a table with a column user, name or email. Each user gets a link that
        works once; it shows the command that connects their JupyterLab. Ten minutes before the end their notebooks say
        so; at the end their sessions end, and their shelves are cleared. Nothing of other users changes. For admins.
    """
    examples = """
        sharedkernel class roster.csv --memory 512MiB --until 18:00
        sharedkernel class status
        sharedkernel class invite ada          # another link for ada, or one for a newcomer
        sharedkernel class until 18:30
        sharedkernel class end
    """
    accepts_arguments = True
    patience = 180.0  # a class's sessions end before the answer

    group = Unicode(help="Name of the class, where there are several at a time.")
    until = Unicode(
        help="When it ends: a time such as 18:00, a date such as 2026-12-31, both, or a duration such as 90m or 12h."
    )
    address = Unicode(
        help="The gateway's address as the class's users reach it, for the links. Default: the one that you use."
    )
    hub_url = Unicode(
        help="Where users sign in at the hub, such as https://hub.example.org/hub, for a gateway with a hub's users. "
        "Default: what the hub tells the gateway."
    )
    known = Bool(
        False, help="The roster may name people who have tokens, sessions or something on a shelf here already."
    )
    replace = Bool(False, help="With `invite`: end the tokens that used links of these people gave; sessions go on.")
    keep = Bool(False, help="With `invite`: leave those tokens good, for another machine.")

    def start(self) -> None:
        """Do what the line says.

        Raises
        ------
        SharedKernelError
            When the roster cannot be used, the gateway does not answer, or it refuses.
        """
        words = self.extra_args
        changes = self.limits()
        if words and words[0] in _WORDS and (changes or self.until):
            fail("limits and --until go with a roster; see `sharedkernel class --help`.", status=2)
        match words:
            case ["status" | "list"]:
                answer = self._ask("GET")
                found = answer["classes"]
                self._show(answer, {name: found[name] for name in found if self.group in ("", name)})
            case ["invite", _, *_]:
                self._invite([Person(word) for word in words[1:]])
            case ["until", moment]:
                answer = self._ask("PATCH", {"until": _moment(moment)})
                self._show(answer, {self.group or _ONLY: answer["class"]})
            case ["end"]:
                done = self._ask("DELETE")
                if not self.print_json(done):
                    print(safe_text(done["message"]))  # noqa: T201
            case [roster] if roster not in ("invite", "until"):
                if not Path(roster).exists() and (meant := get_close_matches(roster, _WORDS, n=1)):
                    fail(f"there is no file {roster}; did you mean `sharedkernel class {meant[0]}`?", status=2)
                people = read_roster(roster)
                if not self.until:
                    fail("until when? Add --until with a time such as 18:00, or a duration such as 90m.", status=2)
                answer = self._ask_for_links("PUT", people, limits=changes, until=_moment(self.until))
                self._show_links(answer, people)
            case _:
                fail(_USE, status=2)

    def _invite(self, people: Sequence[Person]) -> None:
        if self.replace and self.keep:
            fail("--replace ends tokens that --keep leaves good; choose one.", status=2)
        before = self._ask("GET")["class"]
        answer = self._ask_for_links("POST", people, replaces=self.replace if self.replace or self.keep else None)
        self._show_links(answer, people)
        fresh = [person.user for person in people if person.user not in before["users"]]
        if fresh:
            _say(f"New in the class: {', '.join(fresh)}.")
        if answer["codes"] and len(fresh) < len(people):
            tokens = "; nor do tokens that these gave, whose sessions go on" if self.replace else ""
            _say(f"Links that were given to the same people before work no longer{tokens}.")

    def _ask_for_links(self, method: str, people: Sequence[Person], **body: Any) -> dict[str, Any]:
        if not self.hub_url and urlsplit(self._class_address).hostname in _LOOPBACK:
            _say(
                f"You reach the gateway at {self._class_address}, which only this machine does, and so do links to it; "
                "name the address that your class uses with --address."
            )
        return self._ask(method, {"users": [person.user for person in people], "allow_known": self.known} | body)

    def _ask(self, method: str, body: Any = None) -> dict[str, Any]:
        path = f"{CLASS_PATH}?{urlencode({'group': self.group})}" if self.group else CLASS_PATH
        return self.ask(path, method, body)

    # --- what is printed ----------------------------------------------------------------------------------------------

    def _show_links(self, answer: Mapping[str, Any], people: Sequence[Person]) -> None:
        """Print a line for each person: the links can be mailed from it."""
        self.show_notes(answer)
        links = self._links(answer, people)
        made = [{"user": each.user, "email": each.email or None, "link": links[each.user]} for each in people]
        if self.print_json({"class": answer["class"], "invitations": made}):
            return
        for person in people:
            print(" ".join(filter(None, (person.user, safe_text(person.email), links[person.user]))))  # noqa: T201
        what = "Each link works once" if answer["codes"] else "Each signs in at the hub"
        _say(f"{what}; the class ends at {_local(answer['class']['until'])}. `sharedkernel class status` shows it.")

    def _links(self, answer: Mapping[str, Any], people: Sequence[Person]) -> dict[str, str]:
        if answer["codes"]:
            page = f"{self._class_address}/{answer['invitation_path']}"
            return {user: f"{page}#{code}" for user, code in answer["codes"].items()}
        hub = (self.hub_url or answer["hub_url"] or "").rstrip("/")
        if not hub:
            _say("The hub's address is not known here; name it with --hub-url for links that start JupyterLab.")
        return dict.fromkeys((person.user for person in people), hub and f"{hub}/user-redirect/lab")

    @property
    def _class_address(self) -> str:
        """The gateway's address in links."""
        return (self.address or self.credentials().url).rstrip("/")

    def _show(self, answer: Mapping[str, Any], classes: Mapping[str, Any]) -> None:
        if self.print_json(answer):
            return
        if not classes:
            print("There is no class; begin one with `sharedkernel class ROSTER --until TIME`.")  # noqa: T201
        for name, found in classes.items():
            print(_headline(name, found))  # noqa: T201
            table = new_table(text("user"), text("invitation", 2), text("joined", 2), number("sessions", 8))
            for user, member in found["users"].items():
                state = "open" if member["invited"] else "used" if member["joined"] else "-"
                joined = "-" if member["joined"] is None else _local(member["joined"])
                table.add_row(cell(user, "bold"), cell(state), cell(joined), str(member["sessions"]))
            Console(highlight=False).print(table)


def _headline(name: str, found: Mapping[str, Any]) -> str:
    users, what = found["users"], "A class" if name == _ONLY else f"The class {name}"
    joined = sum(member["joined"] is not None for member in users.values())
    words = ", ".join(f"{key.replace('_', ' ')} {limit_words(key, value)}" for key, value in found["limits"].items())
    state = "is being ended" if found["ending"] else f"ends at {_local(found['until'])}"
    return safe_text(f"{what} of {len(users)}, {joined} of them joined; it {state}. Each may use: {words}.")


def _moment(text: str) -> str:
    """Return the moment that *text* names as the gateway takes it."""
    moment = parse_expiry(text, datetime.datetime.now().astimezone())
    return moment.astimezone(datetime.UTC).isoformat(timespec="seconds")


def _local(moment: str) -> str:
    local = datetime.datetime.fromisoformat(moment).astimezone()
    is_today = local.date() == datetime.datetime.now().astimezone().date()
    return f"{local:%H:%M}" if is_today else f"{local:%Y-%m-%d %H:%M}"


def _say(sentence: str) -> None:
    """Print what is not for the programs that read the links."""
    print(sentence, file=sys.stderr)  # noqa: T201
