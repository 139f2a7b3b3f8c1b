"""Classes: groups of users with an end, in a private file, so that a restart changes nothing.

`quotas.py` reads their limits, and `classroom/` begins and ends them. Tokens name their group themselves. The codes of
invitations are kept as salted hashes; a code is random (128 bits), so one round is enough.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import hmac
import logging
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.tokens import salted_hash
from sharedkernel.gateway.config.quotas import QuotaLevel
from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: name of a class that is given none
ONLY_CLASS = "class"


class Invitation(msgspec.Struct, kw_only=True):
    """A code that lets one user in, once; again in the same browser, until a machine has used the token."""

    #: public beginning of the code
    id: str
    salt: str
    hash: str
    #: whether tokens that earlier ones of the same user gave stay good
    is_extra: bool = False
    #: when it was used, UTC; None: it can be used
    used: datetime.datetime | None = None
    #: salted hash of the key that the browser has which used it; None: none has
    browser: str | None = None
    #: id of the token that it gave last
    token: str | None = None
    #: whether a machine has used that token, so that it is not to be replaced
    has_connected: bool = False

    @classmethod
    def make(cls, *, is_extra: bool = False) -> tuple[Invitation, str]:
        """Return a new one, and its code, which cannot be read later."""
        name, salt, secret = secrets.token_hex(4), secrets.token_hex(16), secrets.token_hex(16)
        return cls(id=name, salt=salt, hash=salted_hash(salt, secret), is_extra=is_extra), f"{name}-{secret}"

    def matches(self, code: str) -> bool:
        """Whether *code* is the one that was hashed; takes the same time for every wrong secret."""
        name, _, secret = code.partition("-")
        return name == self.id and hmac.compare_digest(salted_hash(self.salt, secret), self.hash)

    def was_used_with(self, key: str) -> bool:
        """Whether the browser that used it has *key*."""
        return self.browser is not None and hmac.compare_digest(salted_hash(self.salt, key), self.browser)


class ClassMember(msgspec.Struct, kw_only=True):
    """A user of a class."""

    #: their newest invitation; None where the hub signs users in
    invitation: Invitation | None = None
    #: whether nothing of them was here before: no token, no session, no shelf
    is_new: bool = False
    #: whether an admin had changed their limits by hand before
    had_limits: bool = True
    #: when they used an invitation first, UTC
    joined: datetime.datetime | None = None

    def describe(self, sessions: int) -> dict[str, Any]:
        """Return what an admin sees of a member with *sessions*; after their link was replaced they have not joined."""
        unused = self.invitation if self.invitation is not None and self.invitation.used is None else None
        joined = self.joined if unused is None or unused.is_extra else None
        return {"joined": joined, "invited": unused is not None, "sessions": sessions}


class ClassRecord(msgspec.Struct, kw_only=True):
    """A class."""

    #: UTC
    began: datetime.datetime
    #: when it ends or was ended; what is left of it is on its way out
    until: datetime.datetime
    #: checked values by key, as in an entry of the quotas
    limits: dict[str, Any]
    #: by name
    members: dict[str, ClassMember]
    #: sessions of its users that ran before, by kernel id; the class's end leaves them alone
    spared: list[str] = []
    #: who began it
    teacher: str = ""

    @property
    def is_over(self) -> bool:
        """Whether its time is over."""
        return self.until <= utc_now()

    def describe(self, sessions: Mapping[str, int]) -> dict[str, Any]:
        """Return what an admin sees of it, for JSON; *sessions* says how many each user has."""
        users = {user: member.describe(sessions.get(user, 0)) for user, member in sorted(self.members.items())}
        return {"began": self.began, "until": self.until, "ending": self.is_over, "limits": self.limits, "users": users}


class _Content(msgspec.Struct):
    """The content of the file of classes."""

    classes: dict[str, ClassRecord]


class ClassFile:
    """The classes of a gateway, each by its name.

    Parameters
    ----------
    path
        Their file. One that cannot be used is logged, and left until the next class begins.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: not to be changed but in :meth:`changing`
        self.classes: dict[str, ClassRecord] = {}
        try:
            classes = msgspec.json.decode(path.read_bytes(), type=_Content).classes
            QuotaLevel.parse("class", {"groups": {name: found.limits for name, found in classes.items()}})
            self.classes = classes
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, ConfigError) as error:
            log.error("the classes in %s cannot be read (%s); their users' tokens are left alone.", path, error)

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, ClassRecord]]:
        """Yield all classes to change, which are kept if nothing is raised.

        Raises
        ------
        ConfigError
            When the file cannot be written; nothing has changed then.
        """
        classes = copy.deepcopy(self.classes)
        yield classes
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(_Content(classes)) + b"\n")
        except OSError as error:
            raise ConfigError(f"the class cannot be kept in {self._path}: {error.strerror}.") from None
        self.classes = classes

    def find(self, code: str) -> tuple[str, str] | None:
        """Return the class and the user whose invitation has *code*; None for an unknown code."""
        return next(((name, user) for name, user, one in invitations(self.classes) if one.matches(code)), None)


def invitations(classes: Mapping[str, ClassRecord]) -> Iterator[tuple[str, str, Invitation]]:
    """Yield all invitations, with their class and user."""
    for name, found in classes.items():
        for user, member in found.members.items():
            if member.invitation is not None:
                yield name, user, member.invitation


def utc_now() -> datetime.datetime:
    """Return the time, with its zone."""
    return datetime.datetime.now(datetime.UTC)
