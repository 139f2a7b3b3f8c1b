"""The wheel that a gateway makes of itself; `tests/labextension/test_wheel.py` tries a whole one."""

from __future__ import annotations

import csv
import io
import os
import socket
import urllib.request
import zipfile
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from sharedkernel.gateway.page.wheel import pack
from tests.client.relay.support import TIMEOUT, wait_until
from tests.gateway.conftest import Stack


def _install(site: Path, record: list[str], project: str = "demo", **files: str) -> metadata.Distribution:
    info = site / f"{project.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "WHEEL").write_text("Wheel-Version: 1.0\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
    for name, text in files.items():
        (info / name).write_text(text)
    rows = [*record, *(f"{info.name}/{name}" for name in ("WHEEL", "METADATA", "RECORD"))]
    (info / "RECORD").write_text("".join(f"{row},,\n" for row in rows))
    return metadata.Distribution.at(info)


def test_a_wheel_has_what_its_installation_had(tmp_path: Path) -> None:
    """Without scripts and bytecode; what lies beside the packages is data; the record has every file."""
    site = tmp_path / "lib" / "python3" / "site-packages"
    placed = {"demo.py": "x = 1\n", "__pycache__/demo.cpython-311.pyc": "", "../../../share/demo.txt": "y"}
    for name in placed:
        (site / name).resolve().parent.mkdir(parents=True, exist_ok=True)
        (site / name).resolve().write_text(placed[name])
    wheel = pack(_install(site, [*placed, "../../../bin/demo", "demo-1.0.dist-info/INSTALLER"]))
    archive = zipfile.ZipFile(io.BytesIO(wheel.content))
    names = {f"demo-1.0.dist-info/{name}" for name in ("WHEEL", "METADATA", "RECORD")}
    assert set(archive.namelist()) == names | {"demo.py", "demo-1.0.data/data/share/demo.txt"}
    record = list(csv.reader(io.StringIO(archive.read("demo-1.0.dist-info/RECORD").decode())))
    assert {row[0] for row in record} == set(archive.namelist())
    assert wheel.name == "demo-1.0-py3-none-any.whl"


def test_what_no_wheel_can_be_made_of_is_said(tmp_path: Path) -> None:
    """A checkout, a file that is gone, and one in a place that no wheel has."""
    with pytest.raises(ValueError, match="checkout"):
        pack(_install(tmp_path / "a", [], **{"direct_url.json": '{"url": "", "dir_info": {"editable": true}}'}))
    with pytest.raises(OSError, match="gone"):
        pack(_install(tmp_path / "b", ["gone.py"]))
    with pytest.raises(ValueError, match="unknown place"):
        pack(_install(tmp_path / "c", ["../x.py"]))


@pytest.mark.heavy
def test_who_asks_for_the_wheel_and_reads_nothing_has_little_and_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anybody else slower for it."""
    _install(tmp_path, ["random.bin"], "jupyter-sharedkernel")
    (tmp_path / "random.bin").write_bytes(os.urandom(16 << 20))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(":")]))
    config = "c.SharedKernelGateway.request_patience = 2"
    with Stack(users=["ada"], capacity="1GiB", config=config) as stack:
        address = f"{stack.gateway_url}/sharedkernel/package/jupyter_sharedkernel-1.0-py3-none-any.whl"

        def whole() -> int:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
                return len(answer.read())

        length = whole()
        assert length > 16 << 20
        gateway = psutil.Process(stack.gateway.process.pid)
        before, sockets = gateway.memory_info().rss, len(gateway.net_connections("tcp"))
        request = f"GET {address.removeprefix(stack.gateway_url)} HTTP/1.1\r\nHost: 127.0.0.1:{stack.port}\r\n\r\n"
        readers = [socket.create_connection(("127.0.0.1", stack.port)) for _ in range(100)]
        for reader in readers:
            reader.sendall(request.encode())
        wait_until(lambda: len(gateway.net_connections("tcp")) > sockets + 90)
        assert whole() == length
        assert gateway.memory_info().rss < before + (100 << 20)  # of 1.6 GB that were asked for
        wait_until(lambda: len(gateway.net_connections("tcp")) <= sockets)
        for reader in readers:
            reader.close()
