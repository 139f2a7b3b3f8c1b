"""``sharedkernel gateway --check-config``: every fault of the configuration at once, one sentence each, with its line.

A gateway that starts stops at the first fault, only warns of names that nothing knows, and says nothing of groups that
nobody is in; here those are faults too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Enum, TraitError
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.settings import (
    Settings,
    build_devices,
    build_placement,
    build_policy,
    check_group_names,
    check_groups,
    check_quotas,
    place,
)
from sharedkernel.gateway.tls import Certificate, check_exposure
from sharedkernel.gateway.tokens import TokenFile

if TYPE_CHECKING:
    from sharedkernel.gateway.app import SharedKernelGateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something in a configuration file that no trait takes."""

    #: what is wrong, and where
    sentence: str
    #: the names in ``c.SECTION.NAME``; an empty name means the whole section
    section: str
    name: str = ""
    #: whether a gateway does not start with it; else it warns at most
    is_refused: bool = False


def report_faults(app: SharedKernelGateway, settings: Settings, unusable: Iterable[Fault]) -> int:
    """Print what is wrong with *settings*, as *app* has read them, and return the command's exit code.

    Parameters
    ----------
    app
        Has all values but the *unusable* ones.
    settings
        What the files say.
    unusable
        What :func:`find_unusable` found.
    """
    faults = [*(fault.sentence for fault in unusable), *_find_faults(app, settings)]
    for fault in faults:
        print(f"sharedkernel: {fault}", file=sys.stderr)  # noqa: T201
    if not faults:
        files = ", ".join(map(str, settings.files)) or "no configuration file; every setting has its default"
        print(f"In order: {files}.")  # noqa: T201
    return 1 if faults else 0


def _find_faults(app: SharedKernelGateway, settings: Settings) -> Iterator[str]:
    """Yield one sentence for each value that its trait takes and that makes no sense all the same."""
    files = settings.files
    yield from check_quotas(app.quotas, files)
    yield from check_groups(app.groups, files)
    if app.identity != "jupyterhub":  # whose groups nobody else knows
        yield from check_group_names(app.quotas, app.groups, files)
    checks: list[Callable[[], Any]] = [
        lambda: build_devices(app.executors, files),
        lambda: build_placement(app.placement, files),
        lambda: build_policy(app.policy, files),
        lambda: check_exposure(
            app.ip, encrypted=bool(app.certfile or app.sock), allowed=app.allow_insecure_remote
        ),
    ]  # fmt: skip
    if app.certfile:
        checks.append(lambda: Certificate(app.certfile, app.keyfile, app.client_ca))
    if app.identity == "tokens":
        checks.append(lambda: TokenFile(Path(app.tokens_file)).tokens())
    for check in checks:
        try:
            check()
        except ConfigError as error:
            yield str(error)


def find_unusable(app: SharedKernelGateway, settings: Settings) -> Iterator[Fault]:
    """Yield what is set and known to nothing, and what has a value that it cannot have."""
    classes = {cls.__name__: cls for known in (type(app), *app.classes) for cls in known.__mro__}
    for section, values in settings.config.items():
        where = place(settings.files, section, "")
        if not isinstance(values, Config):
            yield Fault(
                sentence=f"{where}c.{section} is no section; write c.SECTION.NAME = VALUE.", section=section
            )  # fmt: skip
        elif section in classes:
            traits = getattr(classes[section], "class_traits", dict)(config=True)
            yield from _unusable_values(app, settings, section, traits)
        elif section != "HubAuth":  # the jupyterhub package's, which need not be there
            yield Fault(sentence=f"{where}there is nothing called {section} here; check the name.", section=section)


def _unusable_values(
    app: SharedKernelGateway, settings: Settings, section: str, traits: dict[str, Any]
) -> Iterator[Fault]:
    for name, value in settings.config[section].items():
        where = place(settings.files, section, name)
        if name not in traits:
            text = f"{section} has no setting {name!r}; see the administrator's guide for those there are."
            yield Fault(sentence=f"{where}{text}", section=section, name=name)
        elif not isinstance(value, LazyConfigValue):
            try:
                traits[name]._validate(app, value)
            except TraitError as error:
                text = _wanted(app, traits[name], value) or f"{str(error).rstrip('.')}."
                yield Fault(sentence=f"{where}{text}", section=section, name=name, is_refused=True)


def _wanted(app: SharedKernelGateway, trait: Any, value: Any) -> str | None:
    """Return what a trait takes instead of *value*; None where it is a validator that does not take it."""
    if isinstance(trait, Enum):
        return f"{trait.name} is {value!r}; write one of {', '.join(map(repr, trait.values or ()))}."
    least = getattr(trait, "min", None)
    if least is not None and type(value) in (int, float) and value < least:
        return f"{trait.name} is {value!r}; write a number from {least}."
    try:
        trait.validate(app, value)
    except TraitError:
        return f"{trait.name} is {value!r}; it has to be {trait.info()}."
    return None


def without(config: Config, faults: Iterable[Fault]) -> Config:
    """Return *config* without what has *faults*."""
    usable = deepcopy(config)
    for fault in faults:
        if fault.name:
            del usable[fault.section][fault.name]
        else:
            del usable[fault.section]
    return usable
