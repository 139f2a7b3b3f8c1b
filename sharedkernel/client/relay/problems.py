"""Why a request was not carried out, as a notebook shows it."""

from __future__ import annotations

from dataclasses import dataclass

from sharedkernel.client.gateway.refusals import GatewayUnreachable
from sharedkernel.errors import ConfigError, SharedKernelError


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason, and what to do."""

    #: shown like an exception's name
    name: str
    #: one sentence, or a few: what was wrong and what to do
    sentence: str


INTERRUPTED = Problem("KeyboardInterrupt", "interrupted while waiting for the gateway; the cell was not run.")
CROWDED = Problem("SharedGPUUnreachable", "too much waits for the gateway already; run the cell again when it is back.")
OUTCOME_LOST = Problem(
    "SharedGPUOutcomeLost",
    "the connection to the gateway broke while this ran, and its outcome with it. "
    "The session and its variables are still there.",
)
_DIED = "the session's process ended; its variables are gone. Run the notebook from its first cell again."
REPLACED = Problem(
    "SharedGPUSessionReplaced",
    "the earlier session took the place of the one that was to run this; run the cell again, in the earlier one.",
)
GONE = Problem(
    "SharedGPUSessionGone",
    "the session is no longer on the gateway, and its variables are gone; the next cell starts a new one.",
)


def session_died(message: object = None) -> Problem:
    """Return the problem of requests whose session's process ended, with the gateway's *message* if there is one."""
    return Problem("SharedGPUSessionDied", str(message or _DIED))


def refusal(error: SharedKernelError) -> Problem:
    """Return the problem of requests for which there is no session."""
    names = {GatewayUnreachable: "SharedGPUUnreachable", ConfigError: "SharedGPUNotSetUp"}
    return Problem(names.get(type(error), "SharedGPURefused"), str(error))
