"""``sharedkernel shelf``: what is on shelves, and taking it off without a notebook of its user."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from rich.console import Console, RenderableType
from traitlets import Bool, Unicode

from sharedkernel.cli.base import ReportCommandApp, fail
from sharedkernel.client.gateway.connection import SHELVES_PATH
from sharedkernel.status.tables import cell, new_table, number, text
from sharedkernel.status.text import about, safe_text
from sharedkernel.units import format_bytes


class ShelfApp(ReportCommandApp):
    """Lists what is on shelves, and takes it off."""

    name = "shelf"
    description = """
        Show what is on your shelf, or take it off; for an admin, on everybody's.

        What is on a shelf counts to its user's quota until it is taken off. A notebook that uses it keeps it until it
        lets go of it.
    """
    examples = """
        sharedkernel shelf                            # yours, or everybody's if you are an admin
        sharedkernel shelf --remove model
        sharedkernel shelf --user ada                 # for admins
        sharedkernel shelf --user ada --remove-all
    """

    patience = 20.0  # an executor that hangs is waited for by the gateway

    user = Unicode(help="Whose shelf. Default: yours; to look, everybody's if you are an admin.")
    remove = Unicode(help="Take what has this name off the shelf.")
    remove_all = Bool(False, help="Take everything off the shelf.")
    device = Unicode(
        help="Take it off on this one of several devices only, as the configuration names it, such as cuda:1. "
        "Default: on all."
    )

    def start(self) -> None:
        """Do what the line says.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer, or refuses.
        """
        self.refuse_empty("user", "remove", "device", what="names nothing")
        if self.remove and self.remove_all:
            fail("--remove and --remove-all do not go together; say which.", status=2)
        if self.remove or self.remove_all:
            self._take_off()
        elif self.device:
            fail("--device goes with --remove or --remove-all.", status=2)
        else:
            self._show()

    def _show(self) -> None:
        document = self.ask(f"{SHELVES_PATH}/{quote(self.user, safe='')}" if self.user else SHELVES_PATH)
        if self.print_json(document):
            return
        console = Console(highlight=False)
        if any(shelf["entries"] for shelf in document["shelves"]):
            console.print(shelves_table(document))
        else:
            console.print("Nothing is on the shelf.")
        for line in _remarks(document):
            print(line)  # noqa: T201

    def _take_off(self) -> None:
        user = self.user or self.ask("/api/me")["identity"]["username"]
        path = f"{SHELVES_PATH}/{quote(user, safe='')}"
        if self.remove:
            path += f"/{quote(self.remove, safe='')}"
        if self.device:
            path += f"?{urlencode({'device': self.device})}"
        answer = self.ask(path, "DELETE")
        if self.print_json(answer):
            return
        for entry in answer["removed"]:
            where = f" on {entry['device']}" if entry["device"] else ""
            removed = f"removed {safe_text(entry['name'])} ({format_bytes(entry['bytes'])}){where}"
            print(f"{removed} from the shelf of {safe_text(user)}")  # noqa: T201
        if answer["used_bytes"]:
            print(f"{format_bytes(answer['used_bytes'])} of it are charged until notebooks that use it let go")  # noqa: T201


def shelves_table(document: Mapping[str, Any]) -> RenderableType:
    """Return what is on shelves, by user and name."""
    has_devices = any(shelf["device"] for shelf in document["shelves"])
    columns = [text("user"), text("name", 2), number("size", 8), number("age", 5)]
    table = new_table(*columns, *([text("device")] if has_devices else []))
    now = time.time()
    for shelf in document["shelves"]:
        for entry in shelf["entries"]:
            age = about(max(0.0, now - entry["shelved_at"]))
            cells = map(cell, (shelf["user"], entry["name"], format_bytes(entry["bytes"]), age))
            table.add_row(*cells, *([cell(shelf["device"] or "")] if has_devices else []))
    return table


def _remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is charged to each user, and which devices nobody knows of."""
    for shelf in document["shelves"]:
        where = f" on {safe_text(shelf['device'])}" if shelf["device"] else ""
        line = f"{safe_text(shelf['user'])}{where}: {format_bytes(shelf['charged_bytes'])} in all"
        if shelf["used_bytes"]:
            line += f", of which {format_bytes(shelf['used_bytes'])} were taken off and are still in use"
        yield line
    for device, sentence in document["away"].items():
        yield f"{safe_text(device)} is away: {safe_text(sentence)}"
