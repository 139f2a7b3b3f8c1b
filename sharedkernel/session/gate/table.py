"""The gate's decisions as tables: where a session stands with its device, and what its main thread does at a stop.

Two machines, which :mod:`.standing` and :mod:`.gate` carry out:

- :data:`TRANSITIONS` is the session's. Its state changes together with the message about it, and is what the shared
  page shows. A session has one request and one grant, however many threads of it use the device. What is not listed
  changes nothing: answers may cross with what they answer. An operation passes in `HOLDING` and `DISABLED`, and asks
  for the device elsewhere.
- :data:`AT_BOUNDARY` and :data:`AT_FORCE_SIGNAL` are the main thread's, for its stops with a grant. What it does
  follows from the most urgent reason, and from what looks at dispatch (:mod:`.onlookers`), where no mode must come in.

Nothing here has side effects, knows a clock, or imports torch.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from sharedkernel.ipc.shared_page import Turn

_IDLE, _READY, _WANTING, _HOLDING, _DISABLED = Turn


class Input(Enum):
    """The inputs that change a session's standing. The session's own go with one message each."""

    #: the first section opens: :class:`~sharedkernel.protocol.CellOpenedReport`
    OPENED = "opened"
    #: the last one closes, without a grant: :class:`~sharedkernel.protocol.CellClosedReport`
    CLOSED = "closed"
    #: an operation needs the device: :class:`~sharedkernel.protocol.DeviceWantedReport`
    WANTED = "wanted"
    #: the executor's answers
    GRANTED = "granted"
    REFUSED = "refused"
    #: the request is void: it was withdrawn, or is sent again once memory that was evicted meanwhile is back
    DROPPED = "dropped"
    #: at a boundary, at a section's end or in an iteration: :class:`~sharedkernel.protocol.GrantReleasedReport`
    RELEASED = "released"
    #: the kernel has ended, or this is a forked child
    DISABLED = "disabled"


#: (state, input) → state. A grant that is not listed has crossed with a withdrawal, and is sent back
TRANSITIONS: dict[tuple[Turn, Input], Turn] = {
    (_IDLE, Input.OPENED): _READY,
    (_READY, Input.CLOSED): _IDLE,
    (_READY, Input.WANTED): _WANTING,
    # an operation in a thread that runs no event loop: nothing would close its section
    (_IDLE, Input.WANTED): _WANTING,
    (_WANTING, Input.GRANTED): _HOLDING,
    (_WANTING, Input.REFUSED): _READY,
    (_WANTING, Input.DROPPED): _READY,
    (_HOLDING, Input.RELEASED): _READY,
    **{(turn, Input.DISABLED): _DISABLED for turn in Turn},
}


class Reason(IntEnum):
    """The most urgent reason to do something at a stop, the least urgent first."""

    NONE = 0
    #: memory is scarce: an allocation that fails can be repeated only with the mode in
    SCARCE = 1
    #: a release is due, since the code passes no reliable boundary: its next operation shows that it uses the device
    DUE = 2
    #: the executor asks for the device
    PREEMPTED = 3


class Look(IntEnum):
    """The onlookers at dispatch."""

    NONE = 0
    #: a profiler: after a yield in its middle, the mode may return for one operation
    SOFT = 1
    #: a tracer, or compiled code
    FIRM = 2


class Step(Enum):
    """The main thread's step at a stop."""

    PASS = "nothing"
    RELEASE = "release the grant"
    TAKE_OUT = "take the mode out, if nothing needs it"
    #: and at a boundary go on
    PUT_IN = "put the mode in"
    #: then release the grant if more is in use than was leased, else take the mode out
    GO_ON = "measure, if that is due"


#: reason → what is done while nothing looks at dispatch, something soft does, or something firm
AT_BOUNDARY: dict[Reason, tuple[Step, Step, Step]] = {
    Reason.NONE: (Step.GO_ON, Step.GO_ON, Step.GO_ON),
    Reason.SCARCE: (Step.PUT_IN, Step.GO_ON, Step.GO_ON),
    Reason.DUE: (Step.RELEASE, Step.GO_ON, Step.GO_ON),
    Reason.PREEMPTED: (Step.RELEASE, Step.RELEASE, Step.RELEASE),
}
#: the same in the middle of an iteration
AT_FORCE_SIGNAL: dict[Reason, tuple[Step, Step, Step]] = {
    Reason.NONE: (Step.TAKE_OUT, Step.TAKE_OUT, Step.TAKE_OUT),
    Reason.SCARCE: (Step.PUT_IN, Step.TAKE_OUT, Step.TAKE_OUT),
    Reason.DUE: (Step.RELEASE, Step.TAKE_OUT, Step.TAKE_OUT),
    Reason.PREEMPTED: (Step.RELEASE, Step.RELEASE, Step.PASS),
}
