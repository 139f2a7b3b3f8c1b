"""What a gateway keeps of its class: a private file, so that a restart changes nothing.

The codes of invitations are in it as salted hashes. A code is random (128 bits), so one round is enough.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: bytes of the largest file that is read: several times what a class of the most users takes
_MOST_BYTES = 4 << 20


class Invitation(msgspec.Struct, kw_only=True):
    """A code that lets one user in, once."""

    #: public beginning of the code
    id: str
    salt: str
    #: hexadecimal SHA-256 of salt and secret
    hash: str
    #: when it was used, UTC; None: it can be used
    used: datetime.datetime | None = None

    @classmethod
    def make(cls) -> tuple[Invitation, str]:
        """Return a new one, and its code, which cannot be read later."""
        name, salt, secret = secrets.token_hex(4), secrets.token_hex(16), secrets.token_hex(16)
        return cls(id=name, salt=salt, hash=_hash(salt, secret)), f"{name}-{secret}"

    def matches(self, code: str) -> bool:
        """Whether *code* is the one that was hashed; takes the same time for every wrong one."""
        secret = code.partition("-")[2]
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)


class ClassMember(msgspec.Struct, kw_only=True):
    """A user of a class."""

    #: their newest invitation; None where the hub signs users in
    invitation: Invitation | None = None
    #: whether they had tokens here before, which stay good after the class
    was_user: bool = False
    #: since when they are in the class, UTC, if nothing of them was here before: no token, no session, no shelf
    new_since: datetime.datetime | None = None
    #: whether an admin had changed their limits by hand before
    had_limits: bool = True
    #: when they used an invitation first, UTC
    joined: datetime.datetime | None = None
    #: ids of the tokens that invitations gave them
    tokens: list[str] = []


class ClassRecord(msgspec.Struct, kw_only=True):
    """A class."""

    version: int = 1
    #: UTC
    began: datetime.datetime
    until: datetime.datetime
    #: checked values by key, as in an entry of the quotas
    limits: dict[str, Any]
    #: by name
    members: dict[str, ClassMember]
    #: sessions of its users that ran before, by kernel id; the class's end leaves them alone
    spared: list[str] = []
    #: sessions that were told of the end, by kernel id
    told: list[str] = []
    #: since when it is being ended, UTC; None: it is not
    ending: datetime.datetime | None = None

    def is_over(self, now: datetime.datetime) -> bool:
        """Whether its time is over, or it is being ended."""
        return self.ending is not None or self.until <= now

    def member_of(self, code: str) -> tuple[str, Invitation] | None:
        """Return whose invitation has *code*, and the invitation; None for an unknown code."""
        name = code.partition("-")[0]
        for user, member in self.members.items():
            invitation = member.invitation
            if invitation is not None and invitation.id == name and invitation.matches(code):
                return user, invitation
        return None

    def token_names(self) -> list[str]:
        """Return the users all of whose tokens are the class's, and the ids of the other users' tokens that are."""
        found: list[str] = []
        for user, member in self.members.items():
            found += member.tokens if member.was_user else [user]
        return found

    def describe(self, sessions: Mapping[str, int]) -> dict[str, Any]:
        """Return what an admin sees of it, for JSON; *sessions* says how many each user has."""
        return {
            "began": _iso(self.began),
            "until": _iso(self.until),
            "ending": self.ending is not None,
            "limits": self.limits,
            "users": {
                user: {
                    "joined": None if member.joined is None else _iso(member.joined),
                    "invited": member.invitation is not None and member.invitation.used is None,
                    "sessions": sessions.get(user, 0),
                }
                for user, member in sorted(self.members.items())
            },
        }


def read_class(path: Path) -> ClassRecord | None:
    """Return the class that *path* keeps; None if there is none. A file that cannot be used is logged, and left."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=ClassRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.error("the class kept in %s cannot be read (%s); its users' tokens and quotas are left alone.", path, error)
        return None


def store_class(path: Path, record: ClassRecord | None) -> None:
    """Keep *record* in *path*; None: remove the file.

    Raises
    ------
    OSError
        When that cannot be done.
    """
    if record is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(record) + b"\n")


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(f"{salt}{secret}".encode()).hexdigest()


def _iso(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).isoformat(timespec="seconds")
