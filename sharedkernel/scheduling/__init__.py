"""The scheduling core: pure decisions about one device. Events in, actions out; see `scheduler.py`."""

from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.types import LaneId, MemoryProfile, SessionId, SessionState, UserId
from sharedkernel.scheduling.scheduler import Scheduler
from sharedkernel.scheduling.snapshot import SessionView

__all__ = [
    "LaneId",
    "MemoryProfile",
    "Scheduler",
    "SchedulerConfig",
    "SessionId",
    "SessionState",
    "SessionView",
    "UserId",
]
