"""Quotas: what each user may use, from the configuration, classes and an admin's PUT requests. Pure.

The most specific value wins, key by key: the user's own entry, then their groups' (their class, those of the
configuration in its order, then those that the identity reports, in the order of their quotas), then `default`, then
the built-in value. At each level a PUT value wins over the configuration file's or the class's.

`settings.py` reads the files, and `fleet/rules.py` sends the limits to the executors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sharedkernel.errors import ConfigError
from sharedkernel.protocol import Limits
from sharedkernel.units import parse_bytes, parse_duration

#: where a value came from, in the API's answers
BUILT_IN = "built in"
#: sessions of a user where nothing else is set, so that a loop that starts them does not take the whole machine
MOST_SESSIONS = 64
#: value of `offload_after` for sessions that are never offloaded
NEVER = "never"


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{value!r} is not a share; write a number above 0, such as 2 for twice the usual share.")
    return float(value)


def _sessions(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{value!r} is not a number of sessions; write a whole number from 0.")
    return value


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{value!r} is not a priority; write a whole number, larger for more important.")
    return value


def _memory(value: Any) -> int | str:
    parse_bytes(value, whole=1 << 40)
    return value  # type: ignore[no-any-return]  # percentages are resolved when the device is known


#: function that checks and converts the value of each key; None in an entry means the built-in value, or that of
#: :data:`_NOT_SET`
QUOTA_KEYS: dict[str, Callable[[Any], Any]] = {
    "memory": _memory,
    "share": _share,
    "sessions": _sessions,
    "priority": _priority,
    "offload_after": lambda value: NEVER if value == NEVER else parse_duration(value),
    "cull_after": lambda value: parse_duration(value) or None,
    "linger": parse_duration,
}
_DEFAULTS: dict[str, Any] = {
    "memory": None,
    "share": 1.0,
    "sessions": MOST_SESSIONS,
    "priority": 0,
    "offload_after": 30.0,
    "cull_after": None,
    "linger": 600.0,
}
#: what None in an entry means where that is not the built-in value: any number
_NOT_SET: dict[str, Any] = {"sessions": None}


class QuotaError(ConfigError):
    """An invalid quota; `path` names it, such as ``("users", "ada", "memory")``."""

    def __init__(self, message: str, path: tuple[str, ...]) -> None:
        super().__init__(message)
        self.path = path


def _check(path: tuple[str, ...], entry: Any, faults: list[QuotaError]) -> dict[str, Any]:
    """Return the valid values of one entry, and append an error to *faults* for each other one."""
    where = "".join(f"[{part!r}]" for part in path)
    if not isinstance(entry, Mapping):
        faults.append(QuotaError(f"quotas{where} is {entry!r}; write a dictionary such as {{'memory': '8GiB'}}.", path))
        return {}
    checked = {}
    for key, value in entry.items():
        if key not in QUOTA_KEYS:
            text = f"quotas{where} has an unknown key {key!r}; the keys are {', '.join(QUOTA_KEYS)}."
            faults.append(QuotaError(text, (*path, str(key))))
            continue
        try:
            checked[key] = _NOT_SET.get(key, _DEFAULTS[key]) if value is None else QUOTA_KEYS[key](value)
        except ConfigError as error:
            faults.append(QuotaError(f"quotas{where}[{key!r}]: {error}", (*path, key)))
    return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLevel:
    """Checked quotas of one origin (the configuration, or PUT requests)."""

    #: "config" or "put"; shown as part of a value's source
    origin: str
    default: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    users: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def parse(cls, origin: str, quotas: Any) -> QuotaLevel:
        """Check quotas as written in the configuration.

        Parameters
        ----------
        origin
            "config" or "put".
        quotas
            A dictionary with default, groups and users.

        Raises
        ------
        QuotaError
            The first fault.
        """
        level, faults = cls.read(origin, quotas)
        if faults:
            raise faults[0]
        return level

    @classmethod
    def read(cls, origin: str, quotas: Any) -> tuple[QuotaLevel, list[QuotaError]]:
        """Return the valid quotas, and all faults.

        Parameters
        ----------
        origin
            "config" or "put".
        quotas
            A dictionary with default, groups and users.
        """
        if not isinstance(quotas, Mapping):
            error = QuotaError(f"quotas is {quotas!r}; write a dictionary with default, groups and users.", ())
            return cls(origin=origin), [error]
        faults = [
            QuotaError(f"quotas has an unknown key {key!r}; it has default, groups and users.", (str(key),))
            for key in quotas
            if key not in ("default", "groups", "users")
        ]
        named: dict[str, dict[str, dict[str, Any]]] = {}
        for kind in ("groups", "users"):
            entries = quotas.get(kind, {})
            if not isinstance(entries, Mapping):
                faults.append(QuotaError(f"quotas[{kind!r}] is {entries!r}; write a dictionary by name.", (kind,)))
                continue
            named[kind] = {str(name): _check((kind, str(name)), entry, faults) for name, entry in entries.items()}
        default = _check(("default",), quotas.get("default", {}), faults)
        return cls(origin=origin, default=default, **named), faults

    def by_whom(self) -> dict[str, dict[str, Any]]:
        """Return all entries by whose they are, in words."""
        groups = {f"group {name}": entry for name, entry in self.groups.items()}
        return {"the default": self.default} | groups | self.users

    def merged(self, newer: QuotaLevel) -> QuotaLevel:
        """Return this level with *newer*'s values over its own, key by key."""

        def merge(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
            return {name: old.get(name, {}) | new.get(name, {}) for name in old | new}

        groups, users = merge(self.groups, newer.groups), merge(self.users, newer.users)
        return replace(self, default=self.default | newer.default, groups=groups, users=users)


def find_group_faults(groups: Any) -> Iterator[str]:
    """Yield a sentence for each invalid entry of *groups*."""
    if not isinstance(groups, Mapping):
        yield f"groups is {groups!r}; write a dictionary such as {{'students': ['ada']}}."
        return
    for name, members in groups.items():
        if not isinstance(members, list | tuple | set) or not all(isinstance(member, str) for member in members):
            yield f"groups[{name!r}] is {members!r}; write a list of users' names."


class Quotas:
    """Every user's limits, from the configuration and from PUT requests.

    Parameters
    ----------
    quotas, groups
        Values of the settings of these names.
    memberships
        Groups by user as the identity reports them, if it does; may change.
    class_groups
        Returns the classes by name; each has checked `limits` by key, and `members` by name.

    Raises
    ------
    ConfigError
        When they cannot be used.
    """

    def __init__(
        self,
        quotas: Any = None,
        groups: Any = None,
        memberships: Mapping[str, Sequence[str]] | None = None,
        class_groups: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        groups = groups or {}
        for sentence in find_group_faults(groups):
            raise ConfigError(sentence)
        self.groups: dict[str, list[str]] = {str(name): list(members) for name, members in groups.items()}
        self._memberships: Mapping[str, Sequence[str]] = {} if memberships is None else memberships
        self._config = QuotaLevel.parse("config", quotas or {})
        self._class_groups = class_groups
        self._put = QuotaLevel(origin="put")

    def overrides(self) -> dict[str, Any]:
        """Return all that was put, as :meth:`put` takes it."""
        return {"default": self._put.default, "groups": self._put.groups, "users": self._put.users}

    def put(self, quotas: Any, *, replaces: bool = False) -> QuotaLevel:
        """Override the configuration's quotas, until a reload or restart; return what was put.

        Parameters
        ----------
        quotas
            As in the configuration.
        replaces
            Whether nothing stays of what was put before.

        Raises
        ------
        QuotaError
            When they cannot be used; nothing has changed then.
        """
        level = QuotaLevel.parse("put", quotas)
        self._put = level if replaces else self._put.merged(level)
        return level

    def has_put(self, user: str) -> bool:
        """Return whether something was put for *user*."""
        return user in self._put.users

    def withdraw(self, *, user: str | None = None, group: str | None = None, key: str | None = None) -> None:
        """Drop what was put for a user or a group, all or one key of it; without either, all that was put."""
        if user is None and group is None:
            self._put = QuotaLevel(origin="put")
        for entries, name in ((self._put.users, user or ""), (self._put.groups, group or "")):
            entries.get(name, {}).pop(key or "", None)
            if not (key and entries.get(name)):
                entries.pop(name, None)

    def explain(self, user: str) -> dict[str, dict[str, Any]]:
        """Return each key's value for *user* and its source, as the API shows it."""
        entries = list(self._entries(user))
        return {
            key: next({"value": entry[key], "source": source} for entry, source in entries if key in entry)
            for key in _DEFAULTS
        }

    def limits(self, user: str, capacity_bytes: int | None) -> Limits:
        """Return *user*'s limits as the executor needs them.

        Parameters
        ----------
        user
            Name of the user.
        capacity_bytes
            Capacity of the device, for percentages; None: not known yet, so that percentages do not limit.
        """
        values = {key: entry["value"] for key, entry in self.explain(user).items()}
        memory = values["memory"]
        if isinstance(memory, str) and memory.endswith("%") and capacity_bytes is None:
            memory = None
        return Limits(
            user=user,
            quota_bytes=None if memory is None else parse_bytes(memory, whole=capacity_bytes),
            share=values["share"],
            priority=values["priority"],
            group=next(iter(self._groups_of(user)), None),
            offload_after=None if values["offload_after"] == NEVER else values["offload_after"],
        )

    def max_sessions(self, user: str) -> int | None:
        """Return the number of sessions that *user* may have; None: no limit."""
        return self.explain(user)["sessions"]["value"]

    def cull_after(self, user: str) -> float | None:
        """Return the seconds after which an idle session of *user* is ended; None: never."""
        return self.explain(user)["cull_after"]["value"]

    def linger(self, user: str) -> float:
        """Return the seconds for which a session of *user* stays detached after it was shut down."""
        return self.explain(user)["linger"]["value"]

    def class_users(self) -> set[str]:
        """Return the names of all classes' users, also of those who have not joined yet."""
        return {user for group in self._class_groups().values() for user in group.members}

    def known_users(self) -> set[str]:
        """Return the names of all users in the configuration, in a class and in PUT requests."""
        members = {member for group in self.groups.values() for member in group}
        return members.union(self._config.users, self.class_users(), self._put.users)

    def _groups_of(self, user: str) -> Iterator[str]:
        """Yield *user*'s groups: the configuration's in its order, then the identity's, those with quotas first."""
        own = [name for name, members in self.groups.items() if user in members]
        yield from own
        reported = self._memberships.get(user, ())
        with_quotas = [name for name in self._config.groups if name in reported]
        yield from dict.fromkeys(name for name in (*with_quotas, *reported) if name not in own)

    def _entries(self, user: str) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield the entries that apply to *user*, most specific first, with their source."""
        levels = (self._put, self._config)
        for level in levels:
            yield level.users.get(user, {}), f"{level.origin}: user {user}"
        for name, group in self._class_groups().items():
            if user in group.members:
                yield self._put.groups.get(name, {}), f"put: group {name}"
                yield group.limits, f"class: group {name}"
        for group in self._groups_of(user):
            for level in levels:
                yield level.groups.get(group, {}), f"{level.origin}: group {group}"
        for level in levels:
            yield level.default, f"{level.origin}: default"
        yield _DEFAULTS, BUILT_IN
