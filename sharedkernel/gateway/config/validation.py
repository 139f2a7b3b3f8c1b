"""Checks of the configuration, at the start, on reload and by ``sharedkernel gateway --check-config``.

A gateway that starts stops at the first fault, and only warns of unknown names; ``--check-config`` prints all faults,
one sentence each, and counts those as faults too. A setting that applies to nobody is no fault: it remains when people
leave, and must not keep a gateway from starting.

On SIGHUP the configuration is read again while the gateway serves. Settings that can change at once do so together; if
one of them cannot be used, none changes. The others wait for the gateway's next start: the log names those that
changed, and the faults that this start would stop at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_core.application import JupyterApp
from traitlets import Enum, TraitError
from traitlets.config import Application, Config, Configurable
from traitlets.config.loader import LazyConfigValue

from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.gateway.auth.hub import make_hub_auth, presumed_hub
from sharedkernel.gateway.auth.tickets import check_host_name, read_key
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.config.quotas import QuotaLevel, find_group_faults
from sharedkernel.gateway.config.settings import PARSERS, Settings, parse_setting, place, read_settings, value_at_start
from sharedkernel.gateway.tls import Certificate, check_exposure

#: the gateway's settings that change at once, in a section that can be read as a whole; so does the certificate
_AT_ONCE = {("SharedKernelGateway", name) for name in ("", "quotas", "groups", "admins", "policy", "placement")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFault:
    """A setting in a configuration file that no trait accepts."""

    #: what is wrong, and where
    sentence: str
    #: the names in ``c.SECTION.NAME``; an empty name means the whole section
    section: str
    name: str = ""
    #: whether a gateway refuses to start with it; else it only warns
    is_refused: bool = False


def report_faults(app: Application, unusable: Sequence[ConfigFault], usable: Settings) -> int:
    """Print what is wrong with the settings, and return the command's exit code.

    Parameters
    ----------
    app
        The application to start with them.
    unusable
        Faults of settings in the files.
    usable
        The other settings of the files, and those of the command line.
    """
    faults = [*(fault.sentence for fault in unusable), *invalid_values(app, usable)]
    warnings = list(ineffective_settings(app, usable))
    if not faults and value_at_start(app, usable, "identity") == "jupyterhub":
        # A gateway beside its hub finds it, and does not say this at each start.
        warnings += filter(None, [presumed_hub(usable.config)])
    for sentence in (*faults, *(f"warning: {sentence}" for sentence in warnings)):
        print(f"sharedkernel: {sentence}", file=sys.stderr)  # noqa: T201
    if not faults:
        files = ", ".join(map(str, usable.files)) or "no configuration file; every setting has its default"
        print(f"In order: {files}.")  # noqa: T201
    return 1 if faults else 0


def invalid_values(app: Application, settings: Settings) -> Iterator[str]:
    """Yield a sentence for each value that its trait accepts, but that is invalid.

    Parameters
    ----------
    app
        The application to start with *settings*; it would stop at the first of these.
    settings
        The usable settings of the files, and those of the command line.
    """
    files = settings.files
    value = partial(value_at_start, app, settings)
    for error in QuotaLevel.read("config", value("quotas") or {})[1]:
        yield f"{place(files, 'quotas', error.path)}{error}"
    for sentence in find_group_faults(value("groups") or {}):
        yield f"{place(files, 'groups')}{sentence}"
    checks: list[Callable[[], Any]] = [
        *(partial(parse_setting, name, value(name), files) for name in PARSERS),
        lambda: check_exposure(
            value("ip"), encrypted=bool(value("certfile") or value("sock")), allowed=value("allow_insecure_remote")
        ),
    ]  # fmt: skip
    if value("certfile"):
        checks.append(lambda: Certificate(value("certfile"), value("keyfile"), value("client_ca")))
    if value("cluster_key"):
        checks += [lambda: read_key(Path(value("cluster_key"))), lambda: check_host_name(value("host_name"))]
    if value("identity") == "tokens":
        checks.append(lambda: TokenFile(Path(value("tokens_file"))).tokens())
    if value("identity") == "jupyterhub":
        checks.append(lambda: make_hub_auth(config=settings.config))
    for check in checks:
        try:
            check()
        except ConfigError as error:
            yield str(error)


def ineffective_settings(app: Application, settings: Settings) -> Iterator[str]:
    """Yield a sentence for each setting that applies to nobody; a gateway serves all the same.

    Parameters
    ----------
    app
        The application to start with *settings*.
    settings
        The usable settings of the files, and those of the command line.
    """
    value = partial(value_at_start, app, settings)
    groups = value("groups") or {}
    # Only the hub knows its groups, and another check reports what is none.
    if value("identity") == "jupyterhub" or not isinstance(groups, Mapping):
        return
    named = QuotaLevel.read("config", value("quotas") or {})[0].groups
    for name in (name for name in named if name not in map(str, groups)):
        yield (
            f"{place(settings.files, 'quotas', ('groups', name))}quotas['groups'][{name!r}] hold for nobody: groups "
            f"has no {name!r}; write c.SharedKernelGateway.groups = {{{name!r}: [USER, …]}}, or take them out."
        )


def unusable_settings(app: Application, settings: Settings) -> Iterator[ConfigFault]:
    """Yield a fault for each setting with an unknown name or an unacceptable value.

    Parameters
    ----------
    app
        The application to start with *settings*.
    settings
        The settings of the files.
    """
    bases = (cls for known in (type(app), *app.classes) for cls in known.__mro__)
    classes = {cls.__name__: cls for cls in bases if issubclass(cls, Configurable)}
    for section, values in settings.config.items():
        where = place(settings.files, "", section=section)
        if not isinstance(values, Config):
            text = f"c.{section} is no section; write c.SECTION.NAME = VALUE."
            yield ConfigFault(sentence=f"{where}{text}", section=section, is_refused=section in classes)
        elif section in classes:
            yield from _unusable_values(app, settings, section, classes[section].class_traits(config=True))
        elif section != "HubAuth":  # the jupyterhub package's, which need not be there
            yield ConfigFault(
                sentence=f"{where}there is nothing called {section} here; check the name.", section=section
            )


def _unusable_values(
    app: Application, settings: Settings, section: str, traits: dict[str, Any]
) -> Iterator[ConfigFault]:
    for name, value in settings.config[section].items():
        where = place(settings.files, name, section=section)
        if name not in traits:
            text = f"{section} has no setting {name!r}; see the administrator's guide for those there are."
            yield ConfigFault(sentence=f"{where}{text}", section=section, name=name)
        elif not isinstance(value, LazyConfigValue):
            try:
                traits[name]._validate(app, value)
            except TraitError as error:
                text = _wanted(app, traits[name], value) or f"{str(error).rstrip('.')}."
                yield ConfigFault(sentence=f"{where}{text}", section=section, name=name, is_refused=True)


def _wanted(app: Application, trait: Any, value: Any) -> str | None:
    """Return what a trait accepts instead of *value*; None if only its validator refuses it."""
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


def without_faults(faults: Iterable[ConfigFault], settings: Settings) -> Settings:
    """Return the settings that have no faults.

    Parameters
    ----------
    faults
        Names of the others.
    settings
        All settings.
    """
    left_out = {(fault.section, fault.name) for fault in faults}
    # Section by section: a value in the place of a section, as in a JSON file, cannot be copied.
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


def reload_settings(
    app: JupyterApp, started_with: Settings, apply: Callable[[Callable[[str], Any], Sequence[Path]], None]
) -> None:
    """Read the configuration again for a running gateway, and apply what can change at once; log the outcome.

    Parameters
    ----------
    app
        The gateway.
    started_with
        The usable settings with which it started, the command line's included.
    apply
        Applies the settings that change at once, or none of them; called with what returns the value of a setting, and
        with the files.
    """
    log = app.log
    try:
        written = read_settings(app.config_file_paths, app.config_file)
        unusable = list(unusable_settings(app, written))
        settings = without_faults(unusable, written).under(app.cli_config)
        for fault in unusable:
            if (fault.section, fault.name) in _AT_ONCE:
                raise ConfigError(fault.sentence)
        apply(partial(value_at_start, app, settings), settings.files)
    except SharedKernelError as error:
        log.error("the configuration was not read again: %s", error)
        return
    log.info("the configuration was read again")
    if waiting := _find_waiting(started_with.config, settings.config):
        log.warning(
            "these changed, too, and stay as they were until you restart the gateway (sessions run on): %s",
            ", ".join(waiting),
        )
    refused = (fault.sentence for fault in unusable if fault.is_refused)
    for sentence in (*refused, *invalid_values(app, settings)):
        log.error("the gateway would not start again with this: %s", sentence)
    unknown = (fault.sentence for fault in unusable if not fault.is_refused)
    for sentence in (*unknown, *ineffective_settings(app, settings)):
        log.warning("%s", sentence)


def _find_waiting(before: Config, now: Config) -> list[str]:
    """Return the settings, as ``c.SECTION.NAME``, that differ and change only at a start."""
    old, new = _flat(before), _flat(now)
    return [
        f"c.{section}.{name}"
        for section, name in sorted({*old, *new} - _AT_ONCE)
        if old.get((section, name)) != new.get((section, name))
    ]


def _flat(config: Config) -> dict[tuple[str, str], Any]:
    """Return comparable values by section and name."""
    return {(section, name): _comparable(value) for section, values in config.items() for name, value in values.items()}


def _comparable(value: Any) -> Any:
    if isinstance(value, LazyConfigValue):
        return value.to_dict()
    # A file makes new functions each time it is read; they cannot be compared.
    return callable(value) or value
