"""A driver that fails at a chosen call, as a device can at any."""

from __future__ import annotations

from typing import Any

from sharedkernel.device_memory.driver import DeviceMemoryError
from tests.device_memory.memfd import MemfdDriver

#: calls that may fail; those that undo a failure do not, unless they are told to
_CALLS = (
    "export",
    "import_",
    "map",
    "set_access",
    "unmap",
    "copy",
    "fill",
    "clear",
    "read",
    "write",
    "synchronize",
    "host_buffer",
)


class Fault(DeviceMemoryError):
    """The chosen call failed."""


class FaultyDriver(MemfdDriver):
    """Fails once at the *fail_at*-th call from now on, then works again."""

    is_new_memory_clean = False

    def __init__(self) -> None:
        super().__init__()
        #: calls until one fails; None: none does
        self.fail_at: int | None = None
        #: what it fails with
        self.error: type[BaseException] = Fault
        self.fails_for_good = False

    def _count(self) -> None:
        if self.fail_at is not None:
            if self.fail_at == 0:
                if not self.fails_for_good:
                    self.fail_at = None
                raise self.error("the device failed.")
            self.fail_at -= 1


def _failing(name: str) -> Any:
    def call(self: FaultyDriver, *args: Any, **kwargs: Any) -> Any:
        self._count()
        return getattr(MemfdDriver, name)(self, *args, **kwargs)

    return call


for _name in _CALLS:
    setattr(FaultyDriver, _name, _failing(_name))
