"""What the executor remembers of each user, over all their sessions, ended ones too."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sharedkernel.protocol import Limits

#: waits remembered for the percentiles in status
_WAITS_KEPT = 1000


@dataclass(slots=True, kw_only=True)
class UserRecord:
    """One user."""

    limits: Limits
    #: seconds waited for each grant, newest last
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=_WAITS_KEPT))
    #: most persistent and ephemeral bytes that the user's sessions had at a time
    peak_bytes: int = 0
    #: iterations of sessions that ended
    iterations_before: int = 0
    #: device-seconds of sessions that had ended when this executor started
    attained_before: float = 0.0
