"""``sharedkernel files``: a user's files on the gateway's machine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from traitlets import Bool

from sharedkernel.cli.base import ReportCommandApp, fail
from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.files import RemoteFiles, no_such_file
from sharedkernel.client.gateway.refusals import GatewayUnreachable
from sharedkernel.errors import Refused
from sharedkernel.status.text import safe_text
from sharedkernel.units import format_bytes

#: least and most paths of each action
_ACTIONS = {"ls": (0, 1), "get": (1, 2), "put": (1, 2), "rm": (1, 1)}


class FilesApp(ReportCommandApp):
    """Lists, uploads, downloads and removes files."""

    name = "files"
    description = """
        List, upload, download and remove your files on the gateway's machine; paths there are below your home.

        What was cut goes on there when the same line is run again, and counts only if its checksum is right.
    """
    examples = """
        sharedkernel files ls                         # --json is for it alone
        sharedkernel files put data.csv               # into your home there
        sharedkernel files put -r images work/images  # a folder, into work/images there
        sharedkernel files get work/model.pt
        sharedkernel files rm work/model.pt
    """
    accepts_arguments = True
    flags: ClassVar[dict[str, Any]] = ReportCommandApp.flags | {  # type: ignore[misc]
        "r": ({"FilesApp": {"recursive": True}}, "Folders, too, with all that is in them."),
    }

    force = Bool(False, help="Replace files that exist, without a question.")
    recursive = Bool(False, help="Folders, too, with all that is in them.")

    def parse_command_line(self, argv: Sequence[str] | None = None) -> None:
        """Parse *argv*, whose options without values may be anywhere: `argparse` takes words only side by side."""
        line = list(sys.argv[1:] if argv is None else argv)
        names = {("-" if len(name) == 1 else "--") + name for name in self.flags}
        super().parse_command_line(sorted(line, key=lambda word: word not in names))

    def start(self) -> None:
        """Do what the line says.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer, or refuses.
        """
        action, *paths = self.extra_args or [""]
        least, most = _ACTIONS.get(action, (0, -1))
        if not least <= len(paths) <= most:
            fail("name what to do: ls [PATH], get PATH [HERE], put HERE [PATH] or rm PATH; see --help.", status=2)
        gateway = Gateway(self.credentials())
        self._host = urlsplit(gateway.url).hostname or ""
        try:
            with self._progress() as show:
                self._files = RemoteFiles(gateway, show)
                getattr(self, f"_{action}")(*paths)
            for link in self._files.links:
                self.log.warning("%s is a link, and was left alone.", safe_text(link))
        except OSError as error:
            fail(f"{safe_text(str(error.filename or 'a file here'))}: {error.strerror or error}.")
        except GatewayUnreachable as error:
            hint = " Run the same line again: it goes on where it was cut." if action in ("get", "put") else ""
            raise GatewayUnreachable(f"{error}{hint}") from None

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Any]:
        columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        console, is_shown = Console(stderr=True), sys.stderr.isatty()
        with Progress(*columns, console=console, disable=not is_shown, redirect_stdout=False) as progress:
            task = progress.add_task("", visible=False)

            def show(name: str, done: int, total: int) -> None:
                if progress.tasks[0].description != safe_text(name):
                    progress.reset(task, description=safe_text(name), visible=True)
                progress.update(task, completed=done, total=total)

            self._bar = progress
            yield show

    def _there(self, path: str) -> str:
        """Return a path there without the host that it may begin with."""
        host, colon, rest = path.partition(":")
        return rest if colon and host in ("", self._host, self._host.partition(".")[0]) else path

    def _may_replace(self, name: str) -> bool:
        """Whether a file that exists may be replaced: by an option, or by its user's word."""
        if self.force:
            return True
        if not sys.stdin.isatty():
            fail(f"{safe_text(name)} exists; --force replaces it.")
        self._bar.stop()
        answer = input(f"{safe_text(name)} exists; replace it? [y/N] ")
        self._bar.start()
        return answer.strip().lower() in ("y", "yes")

    def _ls(self, path: str = "") -> None:
        entries = self._files.list(self._there(path))
        if self.print_json(entries):
            return
        for entry in entries:
            is_folder = entry["type"] == "directory"
            size = "" if is_folder or entry["size"] is None else format_bytes(entry["size"])
            print(f"{size:>10}  {entry['last_modified'][:16].replace('T', ' ')}  ", end="")  # noqa: T201
            print(safe_text(entry["name"]) + "/" * is_folder)  # noqa: T201

    def _rm(self, path: str) -> None:
        path = self._there(path)
        found = self._files.look(path)
        if found["size"] is None:
            raise no_such_file(path)
        if found["is_folder"] and not self.recursive:
            raise Refused(f"{safe_text(path)} is a folder; -r removes it with all that is in it.", reason="is_folder")
        self._files.remove(path)

    def _put(self, here: str, path: str = "") -> None:
        source = Path(here)
        target = self._there(path)
        if not target or (not source.is_dir() and self._files.look(target)["is_folder"]):
            target = f"{target}/{source.resolve().name}".lstrip("/")
        if source.is_dir() and not self.recursive:
            raise Refused(f"{safe_text(here)} is a folder; -r uploads it.", reason="is_folder")
        self._files.put_tree(source, target, self._may_replace)

    def _get(self, path: str, here: str = "") -> None:
        path = self._there(path)
        target = Path(here or ".")
        if self._files.look(path)["is_folder"]:
            if not self.recursive:
                raise Refused(f"{safe_text(path)} is a folder; -r downloads it.", reason="is_folder")
            target = target if here else target / Path(path).name
        elif target.is_dir():
            target /= Path(path).name
        self._files.get_tree(path, target, self._may_replace)
