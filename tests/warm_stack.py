"""A stack for tests whose executor takes over a warm parent that earlier tests have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sharedkernel.local_stack import LocalStack
from tests.warm import WarmPlace, give_back, take_place


class WarmStack(LocalStack):
    """As :class:`LocalStack`; where other devices than ``host`` are asked for nothing is taken over."""

    def __init__(self, **options: Any) -> None:
        self._place: WarmPlace | None = None
        if "devices" not in options:
            self._place = take_place()
        super().__init__(**options)
        if self._place is not None:
            self.executor.arguments.remove("--end-sessions-on-exit")  # the warm parent would end with them

    @property
    def runtime_directory(self) -> Path:
        return super().runtime_directory if self._place is None else self._place.runtime_directory

    @property
    def _scratch(self) -> Path:
        return super()._scratch if self._place is None else self._place.scratch

    def stop(self) -> None:
        """End the services and every session; the warm parent is left to others."""
        super().stop()
        if self._place is not None and not self.directory.exists():
            place, self._place = self._place, None
            give_back(place)
