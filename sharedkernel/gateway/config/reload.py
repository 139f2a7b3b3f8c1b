"""SIGHUP: the configuration is read again while the gateway serves.

What can change at once does, all of it or, where one value cannot be used, nothing. The rest waits for the gateway's
next start; what has changed of it is named, and what that start would stop at, or make nothing of, is said now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.gateway.config.quotas import Quotas
from sharedkernel.gateway.config.settings import (
    Settings,
    build_placement,
    build_policy,
    build_quotas,
    read_settings,
    value_at_start,
)
from sharedkernel.gateway.config.validation import Fault, find_ineffective, find_senseless, find_unusable, leave_out
from sharedkernel.gateway.http.tls import Certificate

if TYPE_CHECKING:
    from sharedkernel.gateway.app import SharedKernelGateway

#: the gateway's own section
_SECTION = "SharedKernelGateway"
#: what of it changes at once, besides the certificate
_AT_ONCE = ("quotas", "groups", "admins", "policy", "placement")


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """What changes at once, checked."""

    quotas: Quotas
    admins: set[str]
    placement: str
    #: "": the executors' own
    policy: str


class Reloading:
    """Reads the configuration again for a gateway that serves.

    Parameters
    ----------
    app
        Serves.
    started_with
        What could be used of the files when it started, and the command line's settings.
    certificate
        What it shows, if it encrypts.
    """

    def __init__(self, app: SharedKernelGateway, started_with: Settings, certificate: Certificate | None) -> None:
        self._app = app
        self._started_with = started_with
        self._certificate = certificate

    def reload(self) -> None:
        """Let hold what the files say now, as far as it can change at once; say what came of it in the log."""
        log = self._app.log
        try:
            written = read_settings(self._app.config_file_paths, self._app.config_file)
            unusable = list(find_unusable(self._app, written))
            settings = leave_out(unusable, written).under(self._app.cli_config)
            news = self._check(settings, unusable)
            if self._certificate is not None:
                self._certificate.load()
        except SharedKernelError as error:
            log.error("the configuration was not read again: %s", error)
            return
        self._apply(news)
        log.info("the configuration was read again")
        self._tell_what_waits(settings, unusable)

    def _check(self, settings: Settings, unusable: Sequence[Fault]) -> _News:
        """Return what changes at once.

        Raises
        ------
        ConfigError
            When something of it cannot be used.
        """
        for fault in unusable:
            if fault.section == _SECTION and fault.name in ("", *_AT_ONCE):
                raise ConfigError(fault.sentence)
        value, files = partial(value_at_start, self._app, settings), settings.files
        return _News(
            quotas=build_quotas(value("quotas"), value("groups"), files),
            admins=value("admins"),
            placement=build_placement(value("placement"), files),
            policy=build_policy(value("policy"), files),
        )

    def _apply(self, news: _News) -> None:
        manager = self._app.kernel_manager
        news.quotas.memberships = manager.quotas.memberships
        self._app.admins = news.admins
        manager.replace_quotas(news.quotas)
        manager.executors.placement = news.placement
        manager.replace_policy(news.policy)

    def _tell_what_waits(self, settings: Settings, unusable: Sequence[Fault]) -> None:
        """Name what changed and waits for a restart, and say what would come of that."""
        app, log = self._app, self._app.log
        if waiting := _find_waiting(self._started_with.config, settings.config):
            log.warning(
                "these changed, too, and stay as they were until you restart the gateway (sessions run on): %s",
                ", ".join(waiting),
            )
        refused = (fault.sentence for fault in unusable if fault.is_refused)
        for sentence in (*refused, *find_senseless(app, settings)):
            log.error("the gateway would not start again with this: %s", sentence)
        unknown = (fault.sentence for fault in unusable if not fault.is_refused)
        for sentence in (*unknown, *find_ineffective(app, settings)):
            log.warning("%s", sentence)


def _find_waiting(before: Config, now: Config) -> list[str]:
    """Return the names, as they are written, of the settings that differ and change only at a start."""
    old, new = _flat(before), _flat(now)
    return [
        f"c.{section}.{name}"
        for section, name in sorted({*old, *new})
        if not (section == _SECTION and name in _AT_ONCE) and old.get((section, name)) != new.get((section, name))
    ]


def _flat(config: Config) -> dict[tuple[str, str], Any]:
    """Return values that can be compared, by section and name."""
    return {(section, name): _comparable(value) for section, values in config.items() for name, value in values.items()}


def _comparable(value: Any) -> Any:
    if isinstance(value, LazyConfigValue):
        return value.to_dict()
    # A file makes its functions anew each time that it is read; whether they do the same, nobody can tell.
    return callable(value) or value
