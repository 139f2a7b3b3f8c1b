"""Detect sessions that use the device beyond their grants, as seen from outside.

The gate is in the session's own process. Other libraries, a program that cannot take turns (`programs.py`), or code
that has removed the gate computes without a grant, beside the session that holds one. NVML reports for how long each
process kept the GPU busy. Time beyond the session's grants is charged as service, so the next turns of this session and
of its user's other notebooks come later; its notebook is notified. No session is ended for it: a library that computes
in a thread of its own seldom does so to take anything from others.

NVML's samples come late by up to a second, in which the grant they belong to may have ended. So a session has a credit
of some seconds, which its grants fill again. Where NVML cannot tell processes apart nobody is charged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sharedkernel.executor.devices import SessionControl
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: device-seconds that a session may seem to use beyond its grants: as far as NVML's samples may lag behind, and more
_CREDIT = 2.0
#: device-seconds beyond grants from which a notebook is told; then each time that they have doubled
_WORTH_TELLING = 5.0


@dataclass(slots=True)
class _Account:
    """One session's, in device-seconds."""

    #: what it was served at the last look
    attained: float
    credit: float = _CREDIT
    #: used beyond its grants, from which on the notebook is told next
    tell_at: float = _WORTH_TELLING


class Ungranted:
    """Compares what all sessions of one device were granted with what they used, at each look at it.

    Parameters
    ----------
    control
        Knows what was granted, and charges for the rest.
    """

    def __init__(self, control: SessionControl) -> None:
        self._control = control
        self._accounts: dict[str, _Account] = {}

    def look(self, sessions: Iterable[SessionHandle], used: Mapping[int, float]) -> None:
        """Charge for the seconds that each session, by its process id, kept the device busy since the last look."""
        attained = self._control.attained()
        before, self._accounts = self._accounts, {}
        for process in sessions:
            served = attained.get(process.session or "")
            if served is None:
                continue
            account = self._accounts[process.process] = before.get(process.process) or _Account(served)
            account.credit = min(_CREDIT, account.credit + served - account.attained - used.get(process.pid, 0.0))
            account.attained = served
            if account.credit < 0:
                self._charge(process, account)

    def _charge(self, process: SessionHandle, account: _Account) -> None:
        seconds, account.credit = -account.credit, 0.0
        self._control.charge(process, seconds)
        account.attained += seconds
        process.ungranted += seconds
        if process.ungranted < account.tell_at:
            return
        account.tell_at = 2 * process.ungranted
        what = format_seconds(process.ungranted)
        log.info("session %s of %s used the device for %s without a grant", process.session, process.user, what)
        self._control.warn(
            process,
            f"This notebook has used the device for {what} outside its turns, by other libraries or programs. "
            "That counts like its turns, which come the later for it.",
        )
