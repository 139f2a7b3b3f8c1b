"""The class of a gateway: it begins, invites its users, tells them of its end, and ends.

An admin or the clock ends a class: its tokens are removed, so that nobody starts another session, then its sessions
end and new users' shelves are cleared, and once nothing is left its quotas and its file go. What is on an executor that
is away is awaited for a while. What its users had before stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel.errors import ConfigError, Refused, SharedKernelError
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.auth.identity import TokenOnlyIdentity
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.classroom.record import ClassMember, ClassRecord, Invitation, read_class, store_class
from sharedkernel.gateway.classroom.sessions import ClassSessions
from sharedkernel.gateway.config.quotas import QuotaLevel
from sharedkernel.gateway.kernels.manager import SessionKernels
from sharedkernel.jupyter.names import is_user_name
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: most users of a class, and the most days until its end
MOST_MEMBERS, MOST_DAYS = 500, 366
#: how long before the end sessions are told of it
_NOTICE = datetime.timedelta(minutes=10)
#: seconds between two looks: usually, and while there is something to do
_PAUSE, _SHORT_PAUSE = 30.0, 5.0
#: how long sessions that cannot be ended are awaited
_PATIENCE = datetime.timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class AdmittedUser:
    """What an invitation gives."""

    user: str
    token: str
    until: datetime.datetime


@dataclass(frozen=True, slots=True)
class ClassEnd:
    """How far the end of a class has come."""

    #: sessions that were ended
    ended: int
    #: sessions that could not be ended yet; None: perhaps some, or something on a shelf, on an executor that is away
    left: int | None


class Classroom:
    """At most one class.

    Parameters
    ----------
    path
        The file that keeps it.
    audit_log
        Records what happens without a request.
    has_peers
        Whether a front of a cluster knows users whom this gateway does not know.
    """

    def __init__(self, path: Path, audit_log: AuditLog, *, has_peers: bool = False) -> None:
        self._path = path
        self._has_peers = has_peers
        self._audit_log = audit_log
        self._record = read_class(path)
        #: the class before, for those who wonder
        self._last: ClassRecord | None = None
        #: checked quotas by user; the same object for good
        self.users: dict[str, dict[str, Any]] = {}
        self._show_quotas()
        self._changed = asyncio.Event()
        self._ending = asyncio.Lock()
        self._manager: SessionKernels
        self._sessions: ClassSessions
        self._identity: TokenOnlyIdentity

    def attach(self, manager: SessionKernels, identity: TokenOnlyIdentity) -> None:
        """Use these for sessions and tokens."""
        self._manager, self._identity = manager, identity
        self._sessions = ClassSessions(manager, self._audit_log)

    @property
    def record(self) -> ClassRecord | None:
        """The class; None if there is none. Not to be changed."""
        return self._record

    def describe(self) -> dict[str, Any] | None:
        """Return the class for JSON; None if there is none."""
        return None if self._record is None else self._record.describe(self._sessions.count(self._record))

    # --- what an admin does -------------------------------------------------------------------------------------------

    async def begin(
        self, users: Sequence[str], limits: Mapping[str, Any], until: datetime.datetime, *, allow_known: bool
    ) -> dict[str, str]:
        """Begin a class.

        Parameters
        ----------
        users
            Names.
        limits
            What each may use, as in an entry of the quotas.
        until
            When it ends, with a time zone.
        allow_known
            Whether users may be among them who have tokens, sessions or something on a shelf here.

        Returns
        -------
        codes
            Of the invitations, by user; none where the hub signs users in.

        Raises
        ------
        Refused
            When it cannot begin; nothing has changed then.
        """
        known = await self._sessions.known_users()
        if self._record is not None:
            raise Refused(
                f"a class of {len(self._record.members)} is here until {_clock(self._record.until)}; end it first, "
                "with `sharedkernel class end`, or invite more people to it, with `sharedkernel class invite NAME`.",
                reason="class_exists",
            )
        self._check_users(users)
        self._check_until(until)
        checked = QuotaLevel.parse("class", {"default": dict(limits)}).default
        if self._tokens is not None and not allow_known:
            self._check_strangers(users, known)
        now = datetime.datetime.now(datetime.UTC)
        record = ClassRecord(
            began=now, until=until, limits=checked, members={}, spared=self._sessions.of_users(set(users))
        )
        codes = self._invite(record, users, known)
        self._keep(record)
        return codes

    async def invite(self, users: Sequence[str], *, allow_known: bool, replaces: bool | None = None) -> dict[str, str]:
        """Invite more users, or users of the class once more: their earlier invitation is void.

        Parameters
        ----------
        users
            Names.
        allow_known
            As :meth:`begin` takes it.
        replaces
            Whether tokens end that used invitations of *users* have given, as where somebody else was quicker; None:
            refused if there are such tokens.

        Returns
        -------
        codes
            Of the new invitations, by user.

        Raises
        ------
        Refused
            When there is no class or they cannot be invited; nothing has changed then.
        """
        known = await self._sessions.known_users()
        with self._changing() as record:
            self._check_open(record)
            fresh = [user for user in users if user not in record.members]
            self._check_users([*record.members, *fresh])
            if self._tokens is not None and not allow_known:
                self._check_strangers(fresh, known)
            given = {user: record.members[user].tokens for user in users if user in record.members}
            if (joined := [user for user, tokens in given.items() if tokens]) and replaces is None:
                raise Refused(
                    f"nothing was changed: {', '.join(joined[:5])}{' …' if len(joined) > 5 else ''} used a link "
                    "already, and the token that it gave stays good. Run it again with --replace, to end such tokens "
                    "in case it was not them (sessions go on), or with --keep, for another machine of theirs.",
                    reason="link_used",
                )
            if replaces and joined and (tokens := self._tokens) is not None:
                tokens.remove(*(name for user in joined for name in given[user]))
                for user in joined:
                    record.members[user].tokens = []
            record.spared += self._sessions.of_users(set(fresh))
            return self._invite(record, users, known)

    def move_end(self, until: datetime.datetime) -> None:
        """Have the class end at another moment; its users are told again.

        Raises
        ------
        Refused
            When there is no class or it cannot end then; nothing has changed then.
        """
        self._check_until(until)
        with self._changing() as record:
            self._check_open(record)
            record.until, record.told = until, []
            if (tokens := self._tokens) is not None:
                tokens.expire(record.token_names(), until)

    async def end(self) -> ClassEnd:
        """End the class and its sessions now.

        Raises
        ------
        SharedKernelError
            When there is no class, or its tokens cannot be removed.
        """
        async with self._ending:
            with self._changing() as record:
                record.ending = record.ending or datetime.datetime.now(datetime.UTC)
                for member in record.members.values():
                    member.invitation = None
            if (tokens := self._tokens) is not None:
                tokens.remove(*record.token_names())
            ended = await self._sessions.end(record)
            left = self._sessions.num_left(record)
            if left == 0 and not await self._sessions.clear_shelves(record):
                left = None
            if left == 0 or datetime.datetime.now(datetime.UTC) - record.ending > _PATIENCE:
                await self._forget(record, ended)
            self._changed.set()
            return ClassEnd(ended, left)

    # --- what users do ------------------------------------------------------------------------------------------------

    def admit(self, code: str) -> AdmittedUser | None:
        """Return a token for the code of an invitation, which is used then; None for an unknown code.

        Raises
        ------
        Refused
            When it was used, the class is over, or no token can be made.
        """
        found = None if self._record is None else self._record.member_of(code)
        if found is None:
            return None
        with self._changing() as record:
            self._check_open(record)
            user, invitation = found[0], record.members[found[0]].invitation
            if invitation is None or invitation.used is not None:
                raise Refused(
                    f"This invitation of {user} was used already; ask for another one, if that was not you.",
                    reason="invitation_used",
                )
            token = self._identity.make_token(user, expires=record.until)
            member, now = record.members[user], datetime.datetime.now(datetime.UTC)
            member.tokens.append(token.rpartition("-")[0])
            invitation.used, member.joined = now, member.joined or now
        return AdmittedUser(user, token, record.until)

    def made_token(self, user: str, made_with: str | None, token: str) -> None:
        """Have a token of *user*'s end with the class if it was made with one that does.

        Parameters
        ----------
        user
            Its owner.
        made_with, token
            The token that its owner signed in with (None: with another proof), and the one that was made.
        """
        member = None if self._record is None else self._record.members.get(user)
        if member is None or made_with is None or made_with.rpartition("-")[0] not in member.tokens:
            return
        with self._changing() as record:
            name = token.rpartition("-")[0]
            record.members[user].tokens.append(name)
            if (tokens := self._tokens) is not None:
                tokens.expire([name], record.until)

    def has_ended_for(self, user: str, token: str) -> bool:
        """Whether *token*, one of *user*'s, has ended with a class, as far as this gateway remembers."""
        now = datetime.datetime.now(datetime.UTC)
        over = [record for record in (self._record, self._last) if record is not None and record.is_over(now)]
        members = [record.members[user] for record in over if user in record.members]
        return any(not member.was_user or token.rpartition("-")[0] in member.tokens for member in members)

    # --- what time does -----------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Tell the class of its end, and end it when its time is over; runs for good."""
        await self._manager.recovery.gathered()  # else sessions of an earlier gateway would be missed
        while True:
            self._changed.clear()
            try:
                await self._advance()
            except SharedKernelError as error:
                log.error("the class cannot be ended: %s", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._seconds_to_wait())

    def _seconds_to_wait(self) -> float:
        if (record := self._record) is None:
            return _PAUSE
        left = record.until - datetime.datetime.now(datetime.UTC)
        if record.ending or left <= _NOTICE:
            return max(0.1, min(_SHORT_PAUSE, left.total_seconds())) if not record.ending else _SHORT_PAUSE
        return min(_PAUSE, (left - _NOTICE).total_seconds() + 0.1)

    async def _advance(self) -> None:
        record, now = self._record, datetime.datetime.now(datetime.UTC)
        if record is None or self._ending.locked():
            return
        if record.is_over(now):
            await self.end()
        elif record.until - now <= _NOTICE:
            await self._tell(record, (record.until - now).total_seconds())

    async def _tell(self, record: ClassRecord, seconds: float) -> None:
        told = [
            str(kernel.kernel_id) for kernel in self._sessions.kernels(record) if kernel.kernel_id not in record.told
        ]
        if not told:
            return
        with self._changing() as changed:  # before they are told, so that none is told twice
            alive = {str(kernel.kernel_id) for kernel in self._sessions.kernels(record)}
            changed.told = [name for name in changed.told if name in alive] + told
        await self._sessions.tell(
            told,
            f"This class ends at {_clock(record.until)}, in {format_seconds(seconds)}: save your notebook, its session "
            "and all variables end then.",
            record,
        )

    # --- the record ---------------------------------------------------------------------------------------------------

    @property
    def _tokens(self) -> TokenFile | None:
        return self._identity.token_file

    def _token_owners(self) -> set[str]:
        return set() if self._tokens is None else {token.user for token in self._tokens.tokens().values()}

    def _invite(self, record: ClassRecord, users: Sequence[str], known: set[str] | None) -> dict[str, str]:
        """Add *users* to a class and return their codes; *known* are those who have something here, None if unclear."""
        has_tokens, owners, now = self._tokens is not None, self._token_owners(), datetime.datetime.now(datetime.UTC)
        codes = {}
        for user in users:
            is_new = has_tokens and not self._has_peers and known is not None and user not in known | owners
            had_limits = self._manager.rules.quotas.has_put(user)
            fresh = ClassMember(was_user=user in owners, new_since=now if is_new else None, had_limits=had_limits)
            member = record.members.setdefault(user, fresh)
            if has_tokens:
                member.invitation, codes[user] = Invitation.make()
        return codes

    def _check_users(self, users: Sequence[str]) -> None:
        def refuse(sentence: str) -> None:
            raise Refused(f"nothing was changed: {sentence}", reason="bad_request")

        if not users or len(users) > MOST_MEMBERS:
            refuse(f"a class has 1 to {MOST_MEMBERS} users, not {len(users)}.")
        for user in users:
            if not is_user_name(user):
                refuse(f"{user!r} cannot be a user's name.")
            if self._identity.is_admin(user):
                refuse(f"{user} is an admin here; whoever has an invitation of theirs would be one, too.")
        if len(set(users)) < len(users):
            refuse("a user is named twice.")

    def _check_strangers(self, users: Sequence[str], known: set[str] | None) -> None:
        known = self._token_owners() | (self._manager.registry.owners() if known is None else known)
        if found := [user for user in users if user in known]:
            raise Refused(
                f"nothing was changed: {', '.join(found[:5])}{' …' if len(found) > 5 else ''} "
                f"{'are users' if len(found) > 1 else 'is a user'} here already, and an invitation opens what they "
                "have. Give newcomers other names, or, if these are the same people, run it again with --known.",
                reason="known_users",
            )

    def _check_until(self, until: datetime.datetime) -> None:
        now = datetime.datetime.now(datetime.UTC)
        if until <= now:
            raise Refused(f"{until.isoformat(timespec='minutes')} has passed already.", reason="bad_request")
        if until > now + datetime.timedelta(days=MOST_DAYS):
            raise Refused(f"a class ends within {MOST_DAYS} days.", reason="bad_request")

    def _check_open(self, record: ClassRecord) -> None:
        if record.is_over(datetime.datetime.now(datetime.UTC)):
            raise Refused("this class is over.", reason="class_over")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[ClassRecord]:
        """Yield a copy of the record, and keep it if nothing is raised."""
        if self._record is None:
            raise Refused(
                "there is no class; begin one with `sharedkernel class ROSTER --until TIME`.", reason="no_class"
            )
        record = msgspec.json.decode(msgspec.json.encode(self._record), type=ClassRecord)
        yield record
        self._keep(record)

    def _keep(self, record: ClassRecord | None) -> None:
        try:
            store_class(self._path, record)
        except OSError as error:
            raise ConfigError(f"the class cannot be kept in {self._path}: {error.strerror}.") from None
        self._record = record
        self._show_quotas()
        self._changed.set()

    async def _forget(self, record: ClassRecord, ended: int) -> None:
        self._keep(None)
        self._last = record
        for user, member in record.members.items():
            if not member.had_limits:  # the next class may have others of these names
                self._manager.rules.quotas.withdraw(user=user)
        self._audit_log.record("class ended", users=len(record.members), sessions=ended)
        log.info("the class of %d is over; %d sessions were ended", len(record.members), ended)
        await self._manager.rules.send_all_limits()

    def _show_quotas(self) -> None:
        self.users.clear()
        if self._record is not None:
            limits, faults = QuotaLevel.read("class", {"default": self._record.limits})
            for fault in faults:  # somebody has written to the file
                log.error("of the class in %s: %s", self._path, fault)
            self.users.update(dict.fromkeys(self._record.members, limits.default))


def _clock(moment: datetime.datetime) -> str:
    local, today = moment.astimezone(), datetime.datetime.now().astimezone().date()
    return f"{local:%H:%M}" if local.date() == today else f"{local:%Y-%m-%d %H:%M}"
