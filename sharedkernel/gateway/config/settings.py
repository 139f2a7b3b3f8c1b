"""The configuration file `jupyter_sharedkernel_config.py`: read at the start and again on SIGHUP.

Errors name the file and, where it can be found, the line: of the syntax error, of the failed statement, or of the entry
of `quotas` that cannot be used.
"""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traitlets import TraitError
from traitlets.config import Config, Configurable, loader

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.config.quotas import QuotaError, Quotas
from sharedkernel.paths import parse_devices
from sharedkernel.system.state_file import StateFile

CONFIG_NAME = "jupyter_sharedkernel_config"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the configuration files."""

    config: Config
    #: the files that were read, most important last
    files: tuple[Path, ...]

    def under(self, command_line: Config) -> Settings:
        """Return these settings, overridden by those of the *command_line*."""
        config = deepcopy(self.config)
        config.merge(command_line)
        return Settings(config, self.files)


def read_settings(paths: Sequence[str], config_file: str = "") -> Settings:
    """Read the configuration.

    Parameters
    ----------
    paths
        Directories to look in, most important first.
    config_file
        The only file to read, if one was named.

    Raises
    ------
    ConfigError
        When the file named is missing, or one cannot be used; with its line where that is known.
    """
    if config_file:
        files = [Path(config_file).expanduser()]
        if not files[0].is_file():
            raise ConfigError(f"there is no configuration file {files[0]}; check --config.")
    else:
        names = [CONFIG_NAME + suffix for suffix in (".py", ".json")]
        files = [path for folder in reversed(paths) for name in names if (path := Path(folder) / name).is_file()]
    config = Config()
    for path in files:
        config.merge(_read(path))
    return Settings(config, tuple(files))


def value_at_start(app: Configurable, settings: Settings, name: str) -> Any:
    """Return the value that one of *app*'s settings has when it starts with *settings*.

    Parameters
    ----------
    app
        The application with the setting; its current value, which may be an earlier start's, is not used.
    settings
        Those of the files and of the command line.
    name
        Name of the setting, in *app*'s class or its bases.

    Raises
    ------
    ConfigError
        When its value is not acceptable.
    """
    trait, written = app.traits()[name], app._find_my_config(settings.config)
    value = written[name] if name in written else app.trait_defaults(name)
    if isinstance(value, loader.LazyConfigValue):  # changed in place, as by `c.….admins.add(…)`
        value = value.get_value(app.trait_defaults(name))
    elif isinstance(value, loader.DeferredConfig):  # text of the command line
        value = value.get_value(trait)
    try:
        return trait._validate(app, value)
    except TraitError as error:
        raise ConfigError(f"{place(settings.files, name)}{error}") from None


def _read(path: Path) -> Config:
    kind = loader.JSONFileConfigLoader if path.suffix == ".json" else loader.PyFileConfigLoader
    try:
        config: Config = kind(path.name, path=str(path.parent)).load_config()
    except (loader.ConfigFileNotFound, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}.") from None
    except (Exception, SystemExit) as error:  # the file is a program, and may raise anything
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        why = f": {error}" if str(error) else ""
        raise ConfigError(f"{path}{where}: {type(error).__name__}{why}.") from None
    return config


def build_quotas(
    quotas: Any,
    groups: Any,
    files: Sequence[Path],
    memberships: Mapping[str, Sequence[str]] | None = None,
    class_groups: Callable[[], Mapping[str, Any]] = dict,
) -> Quotas:
    """Return the quotas that the settings describe.

    Parameters
    ----------
    quotas, groups
        Values of the settings of these names.
    files
        The configuration files, for the line of a fault.
    memberships
        Groups by user as the identity reports them, if it does.
    class_groups
        Returns the classes by name.

    Raises
    ------
    ConfigError
        When they cannot be used.
    """
    try:
        return Quotas(quotas, groups, memberships, class_groups)
    except QuotaError as error:
        raise ConfigError(f"{place(files, 'quotas', error.path)}{error}") from None
    except ConfigError as error:
        raise ConfigError(f"{place(files, 'groups')}{error}") from None


def parse_fronts(value: Any) -> tuple[str, ...]:
    """Return the URLs of the setting `fronts`.

    Raises
    ------
    ConfigError
        When one is no URL.
    """
    if isinstance(value, str):
        value = [url.strip() for url in value.split(",") if url.strip()]
    for url in value if isinstance(value, list | tuple) else [value]:
        if not (isinstance(url, str) and re.fullmatch(r"https?://[^/\s]+/?", url)):
            raise ConfigError(f"fronts names {url!r}; write URLs, such as ['https://gpu.example.org:8585'].")
    return tuple(value)


#: settings with a value of their own kind, and what reads it
PARSERS: dict[str, Callable[[Any], Any]] = {"executors": parse_devices, "fronts": parse_fronts}


def parse_setting(name: str, value: Any, files: Sequence[Path]) -> Any:
    """Return the value of a setting as the gateway uses it.

    Parameters
    ----------
    name, value
        One of :data:`PARSERS`, and its value in the configuration.
    files
        The configuration files, for the line of a fault.

    Raises
    ------
    ConfigError
        When it cannot be used.
    """
    try:
        return PARSERS[name](value)
    except ConfigError as error:
        raise ConfigError(f"{place(files, name)}{error}") from None


def place(
    files: Sequence[Path], setting: str, path: tuple[str, ...] = (), *, section: str = "SharedKernelGateway"
) -> str:
    """Return where a setting is written, as the beginning of a sentence.

    Parameters
    ----------
    files
        The configuration files, most important last.
    setting
        The name in ``c.SECTION.SETTING``; an empty one means the first setting of the section.
    path
        Keys of the entry in the setting's value.
    section
        The name of the section.

    Returns
    -------
    where
        "FILE, line N: "; "FILE: " if the line is not known, "" if there is no file.
    """
    for file in reversed(files):
        if file.suffix == ".py" and (line := _find_line(file.read_bytes(), f"{section}.{setting}", path)) is not None:
            return f"{file}, line {line}: "
    return f"{files[-1]}: " if files else ""


def _find_line(source: bytes, name: str, path: tuple[str, ...]) -> int | None:
    # Bytes, as Python itself reads them: a file may name its encoding.
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Assign):
            target = ast.unparse(statement.targets[0]).partition(".")[2]
            if target == name or (name.endswith(".") and f"{target}.".startswith(name)):
                return _descend(statement.value, path, statement.value.lineno)
    return None


def _descend(node: ast.expr, path: tuple[str, ...], line: int) -> int:
    """Return the line of the innermost entry of *path* that is a literal; *line* is that of *node*."""
    if path and isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == path[0]:
                return _descend(value, path[1:], key.lineno)
    return line


class Memberships(dict[str, tuple[str, ...]]):
    """Groups by user, as the identity last reported them, kept in a file for the gateway's next start.

    Without it, a user's quota would fall to the default between a restart and their next request.

    Parameters
    ----------
    path
        The file that keeps them.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        loss = "After a restart, quotas by group hold for nobody before their next request."
        self._file = StateFile(path, dict[str, tuple[str, ...]], loss=loss, durable=False)
        self.update(self._file.read() or {})
        self._file.write(self)

    def record(self, user: str, groups: Iterable[str]) -> bool:
        """Record the groups of a user.

        Parameters
        ----------
        user
            Name of the user.
        groups
            All groups that the identity reports.

        Returns
        -------
        is_changed
            Whether they differ from those before.
        """
        reported = tuple(sorted(groups))
        if self.get(user, ()) == reported:
            return False
        self[user] = reported
        self._file.write(self)
        return True
