"""How often what happened since the executor started: figures that only grow, for whoever draws them over time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from sharedkernel.protocol import Counts
from sharedkernel.scheduling.model import actions

#: upper bounds of the classes of waits, seconds
WAIT_BOUNDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

_NAMES: dict[type[actions.Action], str] = {
    actions.Grant: "grants",
    actions.Revoke: "preemptions",
    actions.ForceYield: "forced_yields",
    actions.Offload: "offloads",
    actions.Restore: "restores",
}


class Counters:
    """Counts one device's actions and waits."""

    def __init__(self) -> None:
        self._actions = dict.fromkeys(_NAMES.values(), 0)
        self._refusals: Counter[str] = Counter()
        #: waits by class; the last one holds those beyond all bounds
        self._waits = [0] * (len(WAIT_BOUNDS) + 1)
        self._waited = 0.0

    def note(self, action: actions.Action) -> None:
        """Count *action*."""
        if isinstance(action, actions.Refuse):
            self._refusals[action.reason] += 1
        elif (name := _NAMES.get(type(action))) is not None:
            self._actions[name] += 1

    def waited(self, seconds: float) -> None:
        """Count a wait for the device, or for memory, that has ended."""
        self._waits[bisect_left(WAIT_BOUNDS, seconds)] += 1
        self._waited += seconds

    def counts(self) -> Counts:
        """Return all figures."""
        return Counts(
            actions=dict(self._actions),
            refusals=dict(self._refusals),
            wait_bounds_seconds=list(WAIT_BOUNDS),
            waits=list(self._waits),
            waited_seconds=self._waited,
        )
