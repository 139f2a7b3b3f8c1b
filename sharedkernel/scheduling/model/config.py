"""The configuration of one device's scheduler.

Bytes are integers, times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sharedkernel.errors import ConfigError

#: the policy that serves unless another is named
DEFAULT_POLICY = "fair"
#: names of all policies, which `policies/registry.py` fills in when the core is imported
POLICY_NAMES: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The configuration of one device's scheduler.

    Raises
    ------
    ConfigError
        With a sentence that says which value cannot be used and what is accepted.
    """

    #: memory of the device, bytes
    capacity: int
    #: held back from sessions, bytes
    reserve: int = 0
    #: order of service: the name of a policy
    policy: str = DEFAULT_POLICY
    #: seconds of service by which a holder may outrun the first in the run queue before its grant is revoked
    quantum: float = 0.05
    #: seconds from revoking a grant to demanding it by a signal
    preempt_patience: float = 0.05
    #: iterations of known duration that a holder may finish before its revoked grant is demanded by a signal: on a
    #: device where interrupting one means offloading its memory, that costs more than the iteration
    preempt_iterations: float = 0.0
    #: seconds that a session waits for memory behind others before it goes first
    overtake_patience: float = 5.0
    #: seconds that an interrupted iteration waits for more memory before it is refused; and a cell for memory that no
    #: other session can release
    growth_patience: float = 30.0
    #: least seconds for which a session keeps its memory on the device while others wait for room; None: as long as its
    #: cell runs
    memory_quantum: float | None = 20.0
    #: most lanes that run at once
    parallel_lanes: int = 1
    #: a second lane starts only while the solo utilisations of all that run then sum to at most this
    utilisation_limit: float = 1.0
    #: policy ``fifo``: whether later cells that fit run while the oldest waits for memory
    backfill: bool = False

    def __post_init__(self) -> None:
        if self.capacity <= 0:
            raise ConfigError(f"capacity is {self.capacity} bytes; give the device's memory, more than 0.")
        if not 0 <= self.reserve < self.capacity:
            raise ConfigError(
                f"reserve is {self.reserve} bytes; it must be at least 0 and less than the capacity "
                f"({self.capacity} bytes)."
            )
        if self.policy not in POLICY_NAMES:
            raise ConfigError(f"unknown policy {self.policy!r}; choose one of {', '.join(POLICY_NAMES)}.")
        for name in ("quantum", "preempt_patience", "overtake_patience", "growth_patience", "utilisation_limit"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} is {value}; it must be a number greater than 0.")
        if self.memory_quantum is not None and not (self.memory_quantum > 0 and math.isfinite(self.memory_quantum)):
            raise ConfigError(f"memory_quantum is {self.memory_quantum}; it must be a number greater than 0, or None.")
        if not (self.preempt_iterations >= 0 and math.isfinite(self.preempt_iterations)):
            raise ConfigError(f"preempt_iterations is {self.preempt_iterations}; it must be 0 or more.")
        if self.parallel_lanes < 1:
            raise ConfigError(f"parallel_lanes is {self.parallel_lanes}; at least one lane must be able to run.")
        if self.backfill and self.policy != "fifo":
            raise ConfigError(f"backfill belongs to the policy fifo, not to {self.policy}; leave it out.")
