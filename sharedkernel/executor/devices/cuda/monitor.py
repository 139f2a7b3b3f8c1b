"""Watch one GPU from outside: how busy it is, who holds what of it, and whether it is still there.

A GPU that stops answering is looked for anew; sessions stay as they are, and `lost` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from sharedkernel.system.nvml import Gpu, GpuLost, GpuSample, NvmlUnavailable

log = logging.getLogger(__name__)

#: seconds between looks at the GPU
INTERVAL = 1.0


class GpuMonitor:
    """Looks at a GPU from a thread of its own, since a GPU in trouble may keep NVML from answering for long.

    Parameters
    ----------
    gpu
        What is watched.
    on_sample
        Called on the event loop with each look that succeeded.
    interval
        Seconds between looks.
    """

    def __init__(self, gpu: Gpu, on_sample: Callable[[GpuSample], None], *, interval: float = INTERVAL) -> None:
        self._gpu = gpu
        self._on_sample = on_sample
        self._interval = interval
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        #: the last look; None before the first
        self.latest: GpuSample | None = None
        #: why the GPU is gone; None while it is there
        self.lost: str | None = None
        #: why the last look failed although the GPU is there; None if it did not
        self.trouble: str | None = None

    def start(self) -> None:
        """Look for the first time, and then again and again."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="sharedkernel-gpu-watch", daemon=True).start()

    def stop(self) -> None:
        """Look no more; a look under way is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        lost = False
        while not self._stopped.is_set():
            result: GpuSample | NvmlUnavailable
            try:
                if lost:
                    self._gpu.reopen()
                result = self._gpu.sample()
                lost = False
            except NvmlUnavailable as error:
                lost = lost or isinstance(error, GpuLost)
                result = error
            # RuntimeError: the loop ended meanwhile
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take, result, lost)
            self._stopped.wait(self._interval)

    def _take(self, result: GpuSample | NvmlUnavailable, lost: bool) -> None:
        if self._stopped.is_set():
            return
        if isinstance(result, GpuSample):
            if self.lost is not None:
                log.info("the GPU answers again")
            self.lost = self.trouble = None
            self.latest = result
            self._on_sample(result)
        elif not lost:
            if self.trouble is None:
                log.warning("%s", result)
            self.trouble = str(result)
        elif self.lost is None:
            self.lost = str(result)
            log.error("%s Sessions stay, and none starts until it is back.", result)
