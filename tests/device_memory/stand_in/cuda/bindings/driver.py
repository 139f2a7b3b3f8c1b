"""What a process imports as `cuda.bindings.driver` when this folder is on its path: the stand-in of the tests."""

from __future__ import annotations

from typing import Any

from tests.device_memory.fake_cuda import FakeCuda

_cuda = FakeCuda()


def __getattr__(name: str) -> Any:
    return getattr(_cuda, name)
