"""NVIDIA's Multi-Process Service (MPS): lets CUDA kernels of several sessions run at the same moment.

Sessions are processes, so without MPS the driver gives them the device by turns, a few milliseconds each. With it they
are clients of one server that mixes their work. The price is isolation: a fatal fault of one client (an illegal
address, say) ends the device work of all of them, and no new one is let in until all are gone. So MPS is off unless
asked for, and one server never serves more than one trust domain.

The control daemon lives in a private directory of the runtime directory and outlives an executor whose sessions run
on, since they are its clients: the next executor finds it answering and keeps it. What is set per client (memory, part
of the processors) is read when a CUDA context is made, so a change holds from a session's next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from enum import StrEnum
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.paths import make_private_directory

log = logging.getLogger(__name__)

COMMAND = "nvidia-cuda-mps-control"
#: what status says about it wherever it runs
FAULTS = (
    "MPS is on: a fatal fault of one session's CUDA kernel ends the device work of all sessions on this device, and "
    "none starts until all have ended."
)
#: device memory beside a session's quota that its context and libraries take, in bytes
_CONTEXT_BYTES = 1 << 30
#: seconds that the daemon may take to start, to answer, and to end
_TIMEOUT = 10.0
#: least part of the processors that a client gets, in percent
_LEAST_PERCENTAGE = 10


class MpsMode(StrEnum):
    """The settings of ``--mps``."""

    OFF = "off"
    #: use it if it starts
    AUTO = "auto"
    #: do not serve without it
    REQUIRE = "require"


class Mps:
    """One MPS control daemon, for one device.

    Parameters
    ----------
    mode
        Whether it is wanted.
    uuid
        The device's, as `CUDA_VISIBLE_DEVICES` has it.
    """

    def __init__(self, mode: MpsMode, uuid: str) -> None:
        self._mode = mode
        self._uuid = uuid
        self._directory: Path
        #: whether a daemon serves
        self.is_on = False
        #: one sentence for status: what it costs, or why it is not on
        self.note = "MPS is off: sessions' lanes take turns by the driver's time slices."

    async def start(self, runtime_directory: Path) -> None:
        """Start the daemon, or find the one that an earlier executor left; without ``--mps`` do nothing.

        Raises
        ------
        ConfigError
            When it is required and does not start.
        """
        if self._mode is MpsMode.OFF:
            return
        self._directory = make_private_directory(runtime_directory / "mps")
        for name in ("pipe", "log"):
            make_private_directory(self._directory / name)
        failure = await self._start()
        if failure is None:
            self.is_on, self.note = True, FAULTS
            return
        self.note = f"MPS is not on: {failure}"
        if self._mode is MpsMode.REQUIRE:
            raise ConfigError(f"--mps require cannot be met: {failure}")
        log.warning("%s Sessions' lanes take turns by the driver's time slices.", self.note)

    async def stop(self, *, end_sessions: bool) -> None:
        """End the daemon; one whose clients run on is left to the next executor."""
        if not self.is_on or not end_sessions:
            return
        self.is_on = False
        failure = await self._tell("quit")
        if failure is not None:
            log.warning("the MPS control daemon did not end: %s", failure)

    def environment(self, quota_bytes: int, part: float | None) -> dict[str, str]:
        """Return the variables of a client.

        Parameters
        ----------
        quota_bytes
            What its user may have.
        part
            Of the processors, 0 to 1, where lanes run side by side; None: all of them.
        """
        if not self.is_on:
            return {}
        limit = -(-(quota_bytes + _CONTEXT_BYTES) // (1 << 20))
        variables = {**self._directories(), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}M"}
        if part is not None:
            percentage = min(100, max(_LEAST_PERCENTAGE, round(100 * part)))
            variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
        return variables

    def _directories(self) -> dict[str, str]:
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._directory / "log"),
        }

    async def _start(self) -> str | None:
        """Return None once a daemon answers, else why none does."""
        if shutil.which(COMMAND) is None:
            return f"{COMMAND} is not installed here (it comes with the NVIDIA driver's compute utilities)."
        if await self._tell("get_server_list") is None:
            log.info("an MPS control daemon of an earlier executor answers; it is kept")
            return None
        failure = await self._run(["-d"], "")
        return failure if failure is not None else await self._tell("get_server_list")

    async def _tell(self, command: str) -> str | None:
        """Give the daemon one command; return None if it took it, else why not."""
        return await self._run([], f"{command}\n")

    async def _run(self, arguments: list[str], text: str) -> str | None:
        # Its output goes to a file: a daemon that kept a pipe open would keep us reading.
        output = self._directory / "log" / "command.txt"
        with output.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                COMMAND,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **self._directories(), "CUDA_VISIBLE_DEVICES": self._uuid},
            )
        assert process.stdin is not None
        try:
            async with asyncio.timeout(_TIMEOUT):
                with contextlib.suppress(ConnectionError):  # it ended without reading
                    process.stdin.write(text.encode())
                    await process.stdin.drain()
                process.stdin.close()
                code = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"`{' '.join([COMMAND, *arguments])}` did not answer within {_TIMEOUT:.0f} s."
        if code == 0:
            return None
        said = output.read_text(errors="replace").strip().splitlines()
        return f"`{' '.join([COMMAND, *arguments])}` said: {said[-1].rstrip('.') if said else f'exit code {code}'}."
