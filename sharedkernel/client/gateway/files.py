"""Files of a user on a gateway's host: lists, uploads and downloads in bounded memory that go on where they were cut.

What has come of a download lies in a hidden file beside its target, as the host has it for an upload, and takes the
target's place when the host's checksum is that of what has come.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.refusals import refused, unreachable
from sharedkernel.errors import Refused
from sharedkernel.status.text import safe_text

if sys.platform != "win32":
    import fcntl

#: bytes that are read at a time
_BUFFER = 1 << 18
#: seconds for which either side may be silent; a host that computes a checksum of a large file is
_SILENCE, _CHECKSUM_SECONDS = 60.0, 3600.0
_UPLOADS, _CONTENTS, _DOWNLOADS = "/sharedkernel/files/", "/api/contents/", "/files/"
#: what hides a part of a file, on either side, and the most bytes of a name
PART_SUFFIX, _MOST_NAME_BYTES = ".sk-part", 255
_DIGEST_BYTES = hashlib.sha256().digest_size
#: errors of writing that name no file
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def part_of(target: Path) -> Path:
    """Return the path of the hidden file that has what has come of *target*."""
    name = f".{target.name}{PART_SUFFIX}"
    if len(os.fsencode(name)) > _MOST_NAME_BYTES:
        name = f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()}{PART_SUFFIX}"
    return target.with_name(name)


def mode_of(target: Path) -> int:
    """Return the permissions of what takes a file's place, or is new there."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def no_such_file(path: str) -> Refused:
    """Return the error for a path that nothing has there."""
    return Refused(f"there is no file {safe_text(path)} there.", reason="no_such_file")


class RemoteFiles:
    """The files of one user behind a gateway; paths are below the user's home there.

    Every method raises :class:`.GatewayRefused` with a sentence of the host's, or :class:`.GatewayUnreachable`.

    Parameters
    ----------
    gateway
        The gateway.
    progress
        Called with a file's name, the bytes that are done and all that it has, often, and with zeros at each folder;
        what it raises ends the copy.
    """

    def __init__(self, gateway: Gateway, progress: Callable[[str, int, int], None]) -> None:
        self._gateway = gateway
        self._progress = progress
        #: links in folders, which were left alone
        self.links: list[str] = []

    def look(self, path: str) -> dict[str, Any]:
        """Return a file's `size` (None: there is none), `is_folder`, `part` that has come, and `free` bytes there."""
        return self._gateway.fetch("GET", _address(_UPLOADS, path))

    def list(self, path: str) -> list[dict[str, Any]]:
        """Return the entries of a folder, or the file itself, as Jupyter describes them."""
        state = self.look(path)
        if state["size"] is None:
            raise no_such_file(path)
        content = int(state["is_folder"])
        found = self._gateway.fetch("GET", f"{_address(_CONTENTS, path)}?content={content}")
        return sorted(found["content"], key=lambda entry: str(entry["name"])) if content else [found]

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        self._gateway.fetch("DELETE", _address(_CONTENTS, path))

    def make_folder(self, path: str) -> None:
        """Make a folder, if there is none."""
        self._progress(path, 0, 0)
        if not self.look(path)["is_folder"]:
            self._gateway.fetch("PUT", _address(_CONTENTS, path), json.dumps({"type": "directory"}))

    def put_tree(self, source: Path, target: str, may_replace: Callable[[str], bool]) -> None:
        """Upload a file, or a folder with all that is in it but links and hidden files.

        Parameters
        ----------
        source, target
            Paths of the file, or of the folder, here and there.
        may_replace
            Asked with the path of a file that exists there: whether it is replaced; it may raise, too.
        """
        if not source.is_dir():
            exists = self.look(target)["size"] is not None
            if not exists or may_replace(target):
                self.put(source, target, overwrite=exists)
            return
        self.make_folder(target)
        for entry in sorted(source.iterdir()):
            if entry.is_symlink():  # it may lead anywhere, or back
                self.links.append(str(entry))
            elif not entry.name.startswith("."):
                self.put_tree(entry, f"{target}/{entry.name}", may_replace)

    def get_tree(self, source: str, target: Path, may_replace: Callable[[str], bool]) -> None:
        """Download a file, or a folder with all that is in it; as :meth:`put_tree`."""
        if not self.look(source)["is_folder"]:
            exists = target.exists()
            if not exists or may_replace(str(target)):
                self.get(source, target, overwrite=exists)
            return
        self._progress(source, 0, 0)
        target.mkdir(parents=True, exist_ok=True)
        for entry in self.list(source):
            name = str(entry["name"])
            if "/" in name or "\0" in name or name in (".", "..") or os.sep in name:
                raise Refused(f"{safe_text(name)} is no file's name.", reason="bad_request")
            inside = target / name
            if inside.is_symlink() and inside.is_dir():
                raise Refused(f"{safe_text(str(inside))} is a link to a folder here.", reason="bad_request")
            self.get_tree(f"{source}/{name}", inside, may_replace)

    def put(self, source: Path, target: str, *, overwrite: bool) -> None:
        """Upload a file, from where an earlier upload of it was cut."""
        if not stat.S_ISREG(source.stat().st_mode):  # what reads a pipe waits for who writes it
            raise Refused(f"{safe_text(str(source))} is no regular file.", reason="bad_request")
        state, total = self.look(target), source.stat().st_size
        offset = int(state["part"]) if state["part"] <= total else 0
        if total - offset > state["free"]:
            raise Refused(
                f"the disk there is full: {safe_text(target)} needs {total - offset} bytes.", reason="disk_full"
            )
        query = f"?offset={offset}&total={total}&overwrite={int(overwrite)}"
        path, length = _address(_UPLOADS, target) + query, {"Content-Length": str(total - offset + _DIGEST_BYTES)}
        with source.open("rb") as file, self._request("PUT", path, length) as (connection, answer):
            checksum, done = hashlib.sha256(), 0
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has answered before all was sent
                while block := file.read(min(_BUFFER, (offset if done < offset else total) - done)):
                    checksum.update(block)
                    if done >= offset:
                        connection.send(block)
                    done += len(block)
                    self._progress(source.name, done, total)
                if done < total:
                    raise Refused(f"{source} became shorter while it was read; try again.", reason="changed")
                connection.send(checksum.digest())
            answer().read()

    def get(self, source: str, target: Path, *, overwrite: bool) -> None:
        """Download a file, from where an earlier download of it was cut."""
        state = self.look(source)
        if state["size"] is None or state["is_folder"]:
            raise no_such_file(source)
        if target.is_dir():
            raise Refused(f"{safe_text(str(target))} is a folder here.", reason="exists")
        total = int(state["size"])
        part = part_of(target)
        if total - (part.stat().st_size if part.exists() else 0) > shutil.disk_usage(target.parent).free:
            raise Refused(f"the disk here is full: {safe_text(str(target))} needs {total} bytes.", reason="disk_full")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            if not _is_alone(descriptor, part):
                raise Refused(f"{safe_text(str(target))} is being downloaded already.", reason="busy")
            if file.seek(0, os.SEEK_END) > total:
                file.truncate(0)
            file.seek(0)
            checksum = hashlib.file_digest(file, "sha256")
            if (done := file.tell()) < total:
                done = self._receive(source, file, checksum, done, total)
            file.flush()
            there = self._gateway.fetch("GET", _address(_UPLOADS, source) + "?sha256=1", seconds=_CHECKSUM_SECONDS)
            if sys.platform == "win32":  # which moves no file that is open
                file.close()
            if there["sha256"] != checksum.hexdigest():
                part.unlink()
                sentence = f"{safe_text(source)} has changed since its download was begun; download it again."
                raise Refused(sentence, reason="checksum")
            self._progress(source, total, total)
            part.chmod(mode_of(target))
            if overwrite:
                part.replace(target)
                return
            try:
                os.link(part, target)  # what came here meanwhile stays
            except FileExistsError:
                raise Refused(f"{safe_text(str(target))} exists here by now.", reason="exists") from None
            except OSError:  # a disk without links
                part.replace(target)
            else:
                part.unlink()

    def _receive(self, source: str, file: Any, checksum: Any, done: int, total: int) -> int:
        headers = {"Range": f"bytes={done}-"} if done else {}
        with self._request("GET", _address(_DOWNLOADS, source), headers) as (_, answer):
            response = answer()
            while done < total and (block := response.read(min(_BUFFER, total - done))):
                file.write(block)
                checksum.update(block)
                done += len(block)
                self._progress(source, done, total)
        if done < total:
            raise unreachable(self._gateway.url, "the connection was closed", hung_up=True)
        return done

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> Iterator[tuple[HTTPConnection, Callable[[], HTTPResponse]]]:
        """Send a request's head; yield the connection, and what returns the answer or raises it as a refusal."""
        gateway = self._gateway
        connection = gateway.connect(method, path, headers, seconds=_SILENCE)

        def answer() -> HTTPResponse:
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise refused(gateway.url, response.status, response.reason, response.read(_BUFFER), path)
            return response

        try:
            yield connection, answer
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK_FULL):
                raise  # of this machine's file
            raise gateway.explain(error) from None
        finally:
            connection.close()


def _is_alone(descriptor: int, part: Path) -> bool:
    """Whether no other download writes *part*, or has put it in its place by now; none begins until it is closed."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), part.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # a disk without locks
        return True


def _address(route: str, path: str) -> str:
    return route + quote(path.strip("/").encode("utf-8", "surrogateescape"), safe="/")
