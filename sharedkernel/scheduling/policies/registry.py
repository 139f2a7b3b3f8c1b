"""Every policy by its name: the concrete subclasses of :class:`.Policy` in the modules beside this one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator

from sharedkernel.scheduling import policies
from sharedkernel.scheduling.model.config import DEFAULT_POLICY, POLICY_NAMES, SchedulerConfig
from sharedkernel.scheduling.policies.base import Policy
from sharedkernel.scheduling.policies.predictions import Predictions


def _with_subclasses(classes: Iterable[type[Policy]]) -> Iterator[type[Policy]]:
    for policy in classes:
        yield policy
        yield from _with_subclasses(policy.__subclasses__())


for _module in pkgutil.iter_modules(policies.__path__, f"{policies.__name__}."):
    importlib.import_module(_module.name)
_FOUND = sorted(
    _with_subclasses(Policy.__subclasses__()), key=lambda policy: (policy.name != DEFAULT_POLICY, policy.name)
)
#: the default one first, the others by their names
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _FOUND}
POLICY_NAMES.extend(POLICIES)
#: what each does, for the help of options
POLICY_HELP = " ".join(f"`{name}`: {policy.summary}" for name, policy in POLICIES.items())


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
