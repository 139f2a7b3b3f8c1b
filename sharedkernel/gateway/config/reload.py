"""Reload: on SIGHUP the configuration is read again while the gateway serves.

Settings that can change at once do so together; if one of them cannot be used, none changes. The others wait for the
gateway's next start: the log names those that changed, and the faults that this start would stop at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_core.application import JupyterApp
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.gateway.config.quotas import Quotas
from sharedkernel.gateway.config.settings import (
    Settings,
    read_settings,
    value_at_start,
)
from sharedkernel.gateway.config.validation import (
    ConfigFault,
    ineffective_settings,
    invalid_values,
    unusable_settings,
    without_faults,
)
from sharedkernel.gateway.tls import Certificate

#: the gateway's own section
_SECTION = "SharedKernelGateway"
#: its settings that change at once; so does the certificate
_AT_ONCE = ("quotas", "groups", "admins", "policy", "placement")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Checked values of the settings that change at once."""

    quotas: Quotas
    admins: set[str]
    placement: str
    #: "": each executor keeps its own
    policy: str


class ConfigReloader:
    """Reads the configuration again for a running gateway.

    Parameters
    ----------
    app
        The gateway.
    started_with
        The usable settings with which it started, the command line's included.
    certificate
        Its certificate, if it encrypts.
    build
        Returns the quotas that the settings `quotas` and `groups` of the configuration files describe.
    apply
        Applies the changes.
    """

    def __init__(
        self,
        app: JupyterApp,
        started_with: Settings,
        certificate: Certificate | None,
        *,
        build: Callable[[Any, Any, Sequence[Path]], Quotas],
        apply: Callable[[Changes], None],
    ) -> None:
        self._app = app
        self._started_with = started_with
        self._certificate = certificate
        self._build = build
        self._apply = apply

    def reload(self) -> None:
        """Read the files, and apply the settings that can change at once; log the outcome."""
        log = self._app.log
        try:
            written = read_settings(self._app.config_file_paths, self._app.config_file)
            unusable = list(unusable_settings(self._app, written))
            settings = without_faults(unusable, written).under(self._app.cli_config)
            changes = self._check(settings, unusable)
            if self._certificate is not None:
                self._certificate.load()
        except SharedKernelError as error:
            log.error("the configuration was not read again: %s", error)
            return
        self._apply(changes)
        log.info("the configuration was read again")
        self._log_waiting(settings, unusable)

    def _check(self, settings: Settings, unusable: Sequence[ConfigFault]) -> Changes:
        """Return the settings that change at once.

        Raises
        ------
        ConfigError
            When one of them cannot be used.
        """
        for fault in unusable:
            if fault.section == _SECTION and fault.name in ("", *_AT_ONCE):
                raise ConfigError(fault.sentence)
        value = partial(value_at_start, self._app, settings)
        return Changes(
            quotas=self._build(value("quotas"), value("groups"), settings.files),
            admins=value("admins"),
            placement=value("placement"),
            policy=value("policy"),
        )

    def _log_waiting(self, settings: Settings, unusable: Sequence[ConfigFault]) -> None:
        """Log the settings that changed and wait for a restart, and their faults."""
        app, log = self._app, self._app.log
        if waiting := _find_waiting(self._started_with.config, settings.config):
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
        for section, name in sorted({*old, *new})
        if not (section == _SECTION and name in _AT_ONCE) and old.get((section, name)) != new.get((section, name))
    ]


def _flat(config: Config) -> dict[tuple[str, str], Any]:
    """Return comparable values by section and name."""
    return {(section, name): _comparable(value) for section, values in config.items() for name, value in values.items()}


def _comparable(value: Any) -> Any:
    if isinstance(value, LazyConfigValue):
        return value.to_dict()
    # A file makes new functions each time it is read; they cannot be compared.
    return callable(value) or value
