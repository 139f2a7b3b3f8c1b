"""The wheel with which people connect their machines: the gateway's own version, made from what is installed here.

So a user needs neither a checkout nor an index that has the package, and gets what fits the gateway. Where the package
itself runs from a checkout, no wheel can be made, and people need a checkout as well.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import functools
import hashlib
import io
import json
import logging
import threading
import zipfile
from http import HTTPStatus
from importlib import metadata
from pathlib import PurePosixPath
from typing import NamedTuple

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from sharedkernel.distribution import DISTRIBUTION, PUBLISHED, pip_install

log = logging.getLogger(__name__)

#: where it is served, below the gateway's address
PATH = "sharedkernel/package"
#: bytes of it that are written at a time: a client that reads none has no more than these waiting for it
_PART = 64 << 10
#: headers of what a proxy forwards, as tornado writes them
_FORWARDED = frozenset({"Forwarded", "Via", "X-Forwarded-For", "X-Real-Ip"})
#: what an installer adds of its own to a wheel's metadata
_INSTALLERS = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"})
#: from the installed package to what is installed beside it, such as `share`, in every layout of Python's on Linux
_BESIDE = ("..", "..", "..")


class Wheel(NamedTuple):
    """A wheel, as a file's name and content."""

    name: str
    content: bytes


_making = threading.Lock()


def installed_wheel() -> Wheel | None:
    """Return the wheel of what is installed; None where it cannot be made, which is logged with the reason.

    Reads all files of the package the first time, which takes about half a second.
    """
    with _making:  # once, however many ask at first
        return _make()


@functools.cache
def _make() -> Wheel | None:
    try:
        return pack(metadata.distribution(DISTRIBUTION))
    except (metadata.PackageNotFoundError, OSError, ValueError) as error:
        log.info("people need a checkout to connect their machines: %s", error)
        return None


def pack(distribution: metadata.Distribution) -> Wheel:
    """Undo what an installer has done with a wheel.

    Raises
    ------
    OSError
        When a file is missing or cannot be read.
    ValueError
        When it was not installed from a wheel, or lies in an unknown layout.
    """
    if json.loads(distribution.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        raise ValueError(f"{DISTRIBUTION} runs from a checkout")
    # `distribution.files` leaves out what is missing, from Python 3.12 on
    lines = (distribution.read_text("RECORD") or "").splitlines()
    files = [file for row in csv.reader(lines) if (file := PurePosixPath(row[0])).suffix != ".pyc"]
    folder = next((file.parts[0] for file in files if file.match("*.dist-info/WHEEL")), None)
    if folder is None:
        raise ValueError(f"{DISTRIBUTION} was not installed from a wheel")
    stem = folder.removesuffix(".dist-info")
    record, content = io.StringIO(), io.BytesIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            name = _name_in_wheel(file, stem)
            if name is None:
                continue
            data = distribution.locate_file(str(file)).read_bytes()  # type: ignore[attr-defined]
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.writerow([name, f"sha256={digest}", len(data)])
        rows.writerow([f"{folder}/RECORD", "", ""])
        archive.writestr(zipfile.ZipInfo(f"{folder}/RECORD"), record.getvalue(), zipfile.ZIP_DEFLATED)
    return Wheel(f"{stem}-py3-none-any.whl", content.getvalue())


def _name_in_wheel(file: PurePosixPath, stem: str) -> str | None:
    """Return what a wheel calls an installed file; None: an installer made it."""
    if file.parts[:3] == _BESIDE:
        place = PurePosixPath(*file.parts[3:])
        return None if place.parts[0] == "bin" else f"{stem}.data/data/{place}"
    if ".." in file.parts or file.is_absolute():
        raise ValueError(f"{file} lies in an unknown place")
    return None if file.parts[0] == f"{stem}.dist-info" and file.name in _INSTALLERS else str(file)


class Installation(NamedTuple):
    """The way to connect a machine, in the names that the page's scripts read."""

    install_command: str
    #: it has to be run in a checkout
    needs_checkout: bool
    #: it trusts the gateway's certificate by its fingerprint, since nothing else says that it is to be trusted
    checks_fingerprint: bool


async def installation(handler: JupyterHandler, *options: str) -> Installation:
    """Return what connects a machine to the gateway at the address of a handler's request.

    Parameters
    ----------
    handler
        Of the request.
    options
        More of them, for `sharedkernel install`.
    """
    request, certificate = handler.request, handler.settings["certificate"]
    url = f"{request.protocol}://{request.host}{handler.base_url}".rstrip("/")
    wheel = None if PUBLISHED else await asyncio.to_thread(installed_wheel)
    connect = ["sharedkernel", "install", "--gateway-url", url, "--user"]
    install = pip_install() if wheel is None else f"pip install {url_path_join(url, PATH, wheel.name)}"
    fingerprint = None
    # What a proxy forwards has come with the proxy's certificate.
    if certificate is not None and not _FORWARDED.intersection(request.headers):
        fingerprint = certificate.fingerprint_to_check(request.host_name.strip("[]"))
    if fingerprint is not None:
        connect += ["--fingerprint", fingerprint]
        if wheel is not None:  # pip trusts a host whatever certificate it shows, so the hash says what to trust
            address = f"{url_path_join(url, PATH, wheel.name)}#sha256={hashlib.sha256(wheel.content).hexdigest()}"
            install = f'pip install --trusted-host {request.host} "{address}"'
    return Installation(
        # Two lines, since PowerShell knows no `&&` before its seventh version.
        f"{install}\n{' '.join([*connect, *options])}",
        needs_checkout=wheel is None and not PUBLISHED,
        checks_fingerprint=fingerprint is not None,
    )


class WheelHandler(JupyterHandler):
    """``/sharedkernel/package/NAME``: the wheel, for everybody, as it is no secret."""

    @allow_unauthenticated
    async def head(self, name: str) -> None:
        """Say how long it is."""
        await self.get(name)

    @allow_unauthenticated
    async def get(self, name: str) -> None:
        """Return it."""
        wheel = await asyncio.to_thread(installed_wheel)
        if wheel is None or name != wheel.name:
            raise web.HTTPError(HTTPStatus.NOT_FOUND, "This gateway has no such package.")
        self.set_header("Content-Type", "application/zip")
        self.set_header("Content-Length", str(len(wheel.content)))
        if self.request.method != "HEAD":
            await self._write_in_parts(wheel.content)
        self.finish()

    async def _write_in_parts(self, content: bytes) -> None:
        """Write *content* as fast as the client reads; one that reads nothing for long is hung up on."""
        for start in range(0, len(content), _PART):
            self.write(content[start : start + _PART])
            try:
                await asyncio.wait_for(self.flush(), self.settings["request_patience"])
            except TimeoutError:
                log.info("hung up on %s, which does not read the package", self.request.remote_ip)
                self.request.connection.stream.close()  # type: ignore[union-attr]
                raise web.Finish from None
