"""``sharedkernel gateway --check-config``: every fault of the configuration at once, one sentence each, with its line.

A gateway that starts stops at the first fault, and only warns of names that nothing knows; here those are faults too.
What makes sense and holds for nobody is no fault: it is left over when people go, and must not keep a gateway from
starting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Enum, TraitError
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.config.settings import (
    Settings,
    build_devices,
    build_placement,
    build_policy,
    check_group_names,
    check_groups,
    check_quotas,
    place,
    value_at_start,
)
from sharedkernel.gateway.http.tls import Certificate, check_exposure

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


def report_faults(app: SharedKernelGateway, settings: Settings) -> int:
    """Print what is wrong with *settings*, and return the command's exit code.

    Parameters
    ----------
    app
        Would be started with them.
    settings
        What the files say.
    """
    unusable = list(find_unusable(app, settings))
    usable = leave_out(unusable, settings).under(app.cli_config)
    faults = [*(fault.sentence for fault in unusable), *find_senseless(app, usable)]
    for sentence in (*faults, *(f"warning: {sentence}" for sentence in find_ineffective(app, usable))):
        print(f"sharedkernel: {sentence}", file=sys.stderr)  # noqa: T201
    if not faults:
        files = ", ".join(map(str, settings.files)) or "no configuration file; every setting has its default"
        print(f"In order: {files}.")  # noqa: T201
    return 1 if faults else 0


def find_senseless(app: SharedKernelGateway, settings: Settings) -> Iterator[str]:
    """Yield a sentence for each value that its trait takes and that makes no sense all the same.

    Parameters
    ----------
    app
        Would be started with *settings*, and would stop at the first of these.
    settings
        What can be used of the files, and the command line's.
    """
    files = settings.files
    value = partial(value_at_start, app, settings)
    yield from check_quotas(value("quotas"), files)
    yield from check_groups(value("groups"), files)
    checks: list[Callable[[], Any]] = [
        lambda: build_devices(value("executors"), files),
        lambda: build_placement(value("placement"), files),
        lambda: build_policy(value("policy"), files),
        lambda: check_exposure(
            value("ip"), encrypted=bool(value("certfile") or value("sock")), allowed=value("allow_insecure_remote")
        ),
    ]  # fmt: skip
    if value("certfile"):
        checks.append(lambda: Certificate(value("certfile"), value("keyfile"), value("client_ca")))
    if value("identity") == "tokens":
        checks.append(lambda: TokenFile(Path(value("tokens_file"))).tokens())
    for check in checks:
        try:
            check()
        except ConfigError as error:
            yield str(error)


def find_ineffective(app: SharedKernelGateway, settings: Settings) -> Iterator[str]:
    """Yield a sentence for each thing that is set and holds for nobody, with which a gateway serves all the same.

    Parameters
    ----------
    app
        Would be started with *settings*.
    settings
        What can be used of the files, and the command line's.
    """
    value = partial(value_at_start, app, settings)
    if value("identity") != "jupyterhub":  # whose groups nobody else knows
        yield from check_group_names(value("quotas"), value("groups"), settings.files)


def find_unusable(app: SharedKernelGateway, settings: Settings) -> Iterator[Fault]:
    """Yield what is set and known to nothing, and what has a value that it cannot have."""
    classes = {cls.__name__: cls for known in (type(app), *app.classes) for cls in known.__mro__}
    for section, values in settings.config.items():
        where = place(settings.files, section, "")
        if not isinstance(values, Config):
            text = f"c.{section} is no section; write c.SECTION.NAME = VALUE."
            yield Fault(sentence=f"{where}{text}", section=section, is_refused=section in classes)
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


def leave_out(faults: Iterable[Fault], settings: Settings) -> Settings:
    """Return *settings* without what has *faults*."""
    left_out = {(fault.section, fault.name) for fault in faults}
    # Section by section: a section that is none, as JSON may have it, cannot be copied.
    return Settings(
        Config(
            {
                section: {name: deepcopy(values[name]) for name in values if (section, name) not in left_out}
                for section, values in settings.config.items()
                if (section, "") not in left_out
            }
        ),
        settings.files,
    )
