"""``sharedkernel gateway --check-config``: every fault of the configuration at once, one sentence each, with its line.

A gateway that starts stops at the first fault, and only warns of names that nothing knows; here those are faults too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import TraitError
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.settings import Settings, build_devices, build_placement, build_policy, build_quotas, place
from sharedkernel.gateway.tls import Certificate, check_exposure
from sharedkernel.gateway.tokens import TokenFile

if TYPE_CHECKING:
    from sharedkernel.gateway.app import SharedKernelGateway


def report_faults(app: SharedKernelGateway, settings: Settings) -> int:
    """Print what is wrong with *settings*, as *app* has read them, and return the command's exit code."""
    faults = list(find_faults(app, settings))
    for fault in faults:
        print(f"sharedkernel: {fault}", file=sys.stderr)  # noqa: T201
    if not faults:
        files = ", ".join(map(str, settings.files)) or "no configuration file; every setting has its default"
        print(f"In order: {files}.")  # noqa: T201
    return 1 if faults else 0


def find_faults(app: SharedKernelGateway, settings: Settings) -> Iterator[str]:
    """Yield one sentence for each fault."""
    yield from _unknown_names(app, settings)
    files = settings.files
    checks: list[Callable[[], Any]] = [
        lambda: build_quotas(app.quotas, {}, files),
        lambda: build_quotas({}, app.groups, files),
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


def _unknown_names(app: SharedKernelGateway, settings: Settings) -> Iterator[str]:
    """Yield what is set and known to nothing, and what has a value that it cannot have."""
    classes = {cls.__name__: cls for known in (type(app), *app.classes) for cls in known.__mro__}
    for section, values in settings.config.items():
        if not isinstance(values, Config):
            yield f"{place(settings.files, section, '')}c.{section} is no section; write c.SECTION.NAME = VALUE."
            continue
        if section not in classes:
            if section != "HubAuth":  # the jupyterhub package's, which need not be there
                yield f"{place(settings.files, section, '')}there is nothing called {section} here; check the name."
            continue
        traits: dict[str, Any] = getattr(classes[section], "class_traits", dict)(config=True)
        for name, value in values.items():
            where = place(settings.files, section, name)
            if name not in traits:
                yield f"{where}{section} has no setting {name!r}; see the administrator's guide for those there are."
            elif not isinstance(value, LazyConfigValue):
                try:
                    traits[name]._validate(app, value)
                except TraitError as error:
                    yield f"{where}{error}"
