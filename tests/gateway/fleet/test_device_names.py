"""Devices as they are named in the configuration, and where their executors are by that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.paths import device_directory, only_executor_directory, parse_devices
from tests.gateway.test_command import in_process


def test_where_executors_are_follows_from_their_names(tmp_path: Path) -> None:
    """The first device's is at home in the runtime directory; the others have rooms in it."""
    places = {"host": "", "cuda": "", "cuda:0": "", "cuda:1": "cuda-1", "host:12": "host-12"}
    places |= {"cuda:0:1": "cuda-0-1", "MIG-5f66-0a": "MIG-5f66-0a"}
    for device, where in places.items():
        assert device_directory(tmp_path, device) == tmp_path / where
    assert parse_devices(list(places)[2:]) == tuple(list(places)[2:])
    assert only_executor_directory(tmp_path) == tmp_path
    for room in ("cuda-1", "cuda-2"):
        (tmp_path / room).mkdir()
    (tmp_path / "cuda-1" / "executor.sock").touch()
    assert only_executor_directory(tmp_path) == tmp_path / "cuda-1"
    (tmp_path / "cuda-2" / "executor.sock").touch()
    assert only_executor_directory(tmp_path) == tmp_path
    several = str(ExecutorClient(tmp_path).unavailable())
    assert "cuda-1" in several
    assert "name their devices in c.SharedKernelGateway.executors;" in several
    (tmp_path / "cuda-2" / "executor.sock").unlink()
    (tmp_path / "executor.sock").touch()
    assert only_executor_directory(tmp_path) == tmp_path


def test_devices_that_cannot_be_served_are_one_sentence(tmp_path: Path) -> None:
    """With the line that names them; others keep their order, which decides between equals."""
    for value, sentence in (
        ({"cuda:0": 1}, "executors is {'cuda:0': 1}; write a list of devices"),
        ("cuda:0,gpu1", "executors names 'gpu1'; write 'cuda:N', 'cuda:N:M' or 'host:N'"),
        (["host:01"], "executors names 'host:01'"),
        ([0], "executors names 0;"),
        (["host:1", "host:1"], "executors names 'host:1' twice"),
        (["host", "cuda:0"], "'host' and 'cuda:0', whose executors would have the same runtime directory"),
    ):
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            parse_devices(value)
    assert parse_devices("cuda:1, host:3,cuda:0") == ("cuda:1", "host:3", "cuda:0")
    path = tmp_path / "config.py"
    path.write_text("\nc.SharedKernelGateway.executors = ['cuda:0', 'gpu1']\n")
    refused = pytest.raises(ConfigError, match=re.escape(f"{path}, line 2: executors names 'gpu1'"))
    with refused, in_process("--config", str(path), directory=tmp_path):
        pass


def test_a_directory_too_deep_for_a_device_is_refused(tmp_path: Path) -> None:
    """Before its executor is waited for."""
    path = tmp_path / "config.py"
    path.write_text("c.SharedKernelGateway.executors = ['cuda:0', 'cuda:1']")
    deep = tmp_path / ("d" * (80 - len(str(tmp_path)) - len("//run")))
    deep.mkdir()
    with pytest.raises(ConfigError, match="cuda-1 is too long"), in_process("--config", str(path), directory=deep):
        pass
