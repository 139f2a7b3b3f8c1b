"""The newest entries of the audit log, for admins to read on the page.

Only so many bytes are read from the end, so that a request costs the same however long the log is; where it has just
been set aside, they are those of the file before. What is older is in the files themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.audit import OLD_FILES
from sharedkernel.gateway.http.handlers import GatewayHandler, for_users

#: bytes that are read from the end of the log at most, and entries that are returned at most
MOST_BYTES, MOST_ENTRIES = 256 << 10, 500
_USUAL_ENTRIES = 50


def newest_entries(
    path: Path, user: str = "", *, most: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES
) -> tuple[list[dict[str, Any]], bool]:
    """Return the newest entries of an audit log, newest first, and whether older ones may be in the files.

    Parameters
    ----------
    path
        The file to which entries are added; those that were set aside are beside it.
    user
        Part of the name of who acted, or of whose session it was; "": everybody.
    most
        Entries to return.
    most_bytes
        Bytes to read.

    Raises
    ------
    OSError
        When a file is there that cannot be read.
    """
    wanted = user.casefold()
    found: list[dict[str, Any]] = []
    for file in (path, *(path.with_name(f"{path.name}.{number}") for number in range(1, OLD_FILES + 1))):
        try:
            lines, read, is_whole = _last_lines(file, most_bytes)
        except FileNotFoundError:
            continue
        most_bytes -= read
        for entry in _entries(lines):
            if any(wanted in str(entry.get(key) or "").casefold() for key in ("user", "owner")):
                if len(found) == most:
                    return found, True
                found.append(entry)
        if not is_whole:
            return found, True
    return found, False


def _last_lines(path: Path, most_bytes: int) -> tuple[list[bytes], int, bool]:
    """Return the lines at the end of a file, the bytes that were read, and whether this is all of it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        begin = max(0, size - most_bytes)
        file.seek(begin)
        text = file.read(min(size, most_bytes))
    lines = text.split(b"\n")
    # The first line was cut, and what follows the last newline is still being written.
    return lines[1 if begin else 0 : -1], len(text), begin == 0


def _entries(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Yield entries, the last one first; lines that are none are left out."""
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            if isinstance(entry := json.loads(line), dict):
                yield entry


class AuditTailHandler(GatewayHandler):
    """``/sharedkernel/api/audit?user=ada&entries=50``: the newest entries of the audit log; for admins."""

    @for_users
    async def get(self) -> None:
        """Return the entries, newest first."""
        self.check_admin("may read the audit log")
        entries, is_cut = await self.newest(self.get_query_argument("user", ""), self._num_entries())
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps({"entries": entries, "older": is_cut, "file": self._path and str(self._path)}))

    @property
    def _path(self) -> Path | None:
        return self.settings["audit_log"].path

    async def newest(self, user: str, most: int) -> tuple[list[dict[str, Any]], bool]:
        """Return the newest entries, newest first, and whether there may be older ones; see :func:`newest_entries`.

        Raises
        ------
        Refused
            When the log cannot be read.
        """
        if self._path is None:
            return [], False
        try:
            return await asyncio.to_thread(newest_entries, self._path, user, most=most)
        except OSError as error:
            raise Refused(
                f"the audit log {self._path} cannot be read: {error.strerror}.", reason="no_audit_log"
            ) from None

    def _num_entries(self) -> int:
        text = self.get_query_argument("entries", str(_USUAL_ENTRIES))
        if not (text.isdecimal() and 1 <= int(text) <= MOST_ENTRIES):
            raise Refused(
                f"`entries` is {text!r}; it should be a number from 1 to {MOST_ENTRIES}.", reason="bad_request"
            )
        return int(text)
