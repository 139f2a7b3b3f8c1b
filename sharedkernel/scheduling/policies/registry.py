"""Every policy by its name.

To add a policy:

1. Subclass :class:`.Policy`, in `by_arrival_and_share.py`, or in `by_service.py` if it ranks by the service that cells
   had or may still need.
2. Name it in `PolicyName` (`scheduling/model/config.py`), by which configurations are checked, and add it here.
3. "Add a policy" in CONTRIBUTING.md has the texts for users, and the tests.
"""

from __future__ import annotations

from sharedkernel.scheduling.model.config import PolicyName, SchedulerConfig
from sharedkernel.scheduling.policies.base import Policy
from sharedkernel.scheduling.policies.by_arrival_and_share import Fair, Fifo, Pack, Priority
from sharedkernel.scheduling.policies.by_service import Gittins, Las, Srtf
from sharedkernel.scheduling.policies.predictions import Predictions

#: in the order in which people choose
POLICIES: dict[str, type[Policy]] = {
    PolicyName.FAIR: Fair,
    PolicyName.FIFO: Fifo,
    PolicyName.SRTF: Srtf,
    PolicyName.PACK: Pack,
    PolicyName.PRIORITY: Priority,
    PolicyName.LAS: Las,
    PolicyName.GITTINS: Gittins,
}


def make_policy(config: SchedulerConfig, predictions: Predictions) -> Policy:
    """Return the policy that *config* names.

    Parameters
    ----------
    config
        The scheduler's configuration.
    predictions
        What cells may still need.
    """
    return POLICIES[config.policy](config, predictions)
