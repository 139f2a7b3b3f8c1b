"""Classes begin, invite their users, announce their end, and end.

An admin or the clock ends a class: its tokens are removed, so that nobody starts another session, then its sessions end
and new users' shelves are cleared, and once nothing is left its limits go. All of this is repeated every few seconds,
by the next gateway too, until the class is gone; what is on an executor that is away is awaited for a while. What its
users had before stays.

Not here: limits (`config/quotas.py`), and tokens, which expire by themselves when the class's time is over.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Annotated, Any, NoReturn

import msgspec

from sharedkernel.errors import ConfigError, Refused, SharedKernelError
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.auth.identity import TokenOnlyIdentity
from sharedkernel.gateway.auth.tokens import salted_hash
from sharedkernel.gateway.classroom.sessions import ClassSessions
from sharedkernel.gateway.config.classes import ClassFile, ClassMember, ClassRecord, Invitation, invitations, utc_now
from sharedkernel.gateway.config.quotas import QuotaLevel
from sharedkernel.gateway.kernels.manager import SessionKernels
from sharedkernel.jupyter.names import is_user_name
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: most users of a class, and the most days until its end
MOST_MEMBERS, MOST_DAYS = 500, 366
#: what each user may use unless the admin says otherwise: idle sessions end, and a few notebooks are open
_LIMITS = {"cull_after": "1h", "sessions": 5}
#: how long before the end sessions are notified, and how long those that cannot be ended are awaited
_NOTICE = _PATIENCE = datetime.timedelta(minutes=10)
#: seconds between two looks at the clock
_PAUSE = 5.0


#: of people; each is checked later, and is short enough for the audit log here
_Names = list[Annotated[str, msgspec.Meta(max_length=200)]]


class ClassChange(msgspec.Struct, kw_only=True):
    """The admin's settings of a class."""

    #: who is invited; the earlier invitations of users of the class are void
    users: _Names = []
    #: when it ends; its users are notified again
    until: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None
    #: what each may use, as in an entry of the quotas; of a class that begins
    limits: dict[str, Any] = {}
    #: whether users may be among them who have tokens, sessions or something on a shelf here
    allow_known: bool = False
    #: whether tokens end that used invitations of them have given, as where somebody else was quicker; None: refused if
    #: there are such tokens
    replaces: bool | None = None


class NewPeople(msgspec.Struct, kw_only=True):
    """People whom an admin lets in without a class."""

    users: Annotated[_Names, msgspec.Meta(min_length=1, max_length=MOST_MEMBERS)]


class Classes:
    """The classes of a gateway. A user is in one at a time.

    Parameters
    ----------
    file
        Keeps them.
    manager
        Has the sessions.
    identity
        Knows the users, and makes their tokens.
    audit_log
        Records what happens without a request.
    """

    def __init__(
        self, file: ClassFile, manager: SessionKernels, identity: TokenOnlyIdentity, audit_log: AuditLog
    ) -> None:
        self._file = file
        self._manager = manager
        self._identity = identity
        self._audit_log = audit_log
        self._sessions = ClassSessions(manager, audit_log)
        self._ending = asyncio.Lock()
        #: when this gateway first tried to end a class, by its name
        self._tried: dict[str, datetime.datetime] = {}
        #: sessions that were notified of the end, by their class
        self._notified: defaultdict[str, set[str]] = defaultdict(set)
        #: ids of tokens that have ended with a class
        self._ended_tokens: set[str] = set()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return what an admin sees of all classes, by name."""
        classes = self._file.classes.items()
        return {name: found.describe(Counter(self._sessions.of_class(found).values())) for name, found in classes}

    def name_of(self, name: str | None) -> str:
        """Return *name* if there is such a class; None: the name of the only one.

        Raises
        ------
        Refused
            When there is none, or there are several.
        """
        classes = self._file.classes
        if name is None and len(classes) > 1:
            raise Refused(f"the classes {', '.join(classes)} are here; say which, with --group.", reason="bad_request")
        found = next((each for each in classes if name in (None, each)), None)
        if found is None:
            what = "class" if name is None else f"class {name}"
            sentence = f"there is no {what}; begin one with `sharedkernel class ROSTER --until TIME`."
            raise Refused(sentence, reason="no_class")
        return found

    # --- what an admin does -------------------------------------------------------------------------------------------

    async def begin(self, name: str, wanted: ClassChange, teacher: str) -> dict[str, str]:
        """Begin a class of *teacher*'s.

        Returns
        -------
        codes
            Of its invitations, by user; none where the hub signs users in.

        Raises
        ------
        SharedKernelError
            When it cannot begin; nothing has changed then.
        """
        known = await self._sessions.known_users()
        if (found := self._file.classes.get(name)) is not None:
            raise Refused(
                f"a class of {len(found.members)} is here until {_clock(found.until)}; end it with `sharedkernel class "
                "end`, invite more people with `sharedkernel class invite NAME`, or name another one with --group.",
                reason="class_exists",
            )
        if wanted.until is None or not is_user_name(name):
            raise Refused("a class has a name, as users have, and an end, `until`.", reason="bad_request")
        limits = QuotaLevel.parse("class", {"default": _LIMITS | wanted.limits}).default
        with self._file.changing() as classes:
            classes[name] = ClassRecord(began=utc_now(), until=wanted.until, limits=limits, members={}, teacher=teacher)
            codes = self._invite(classes, name, wanted, known)
            self._move_end(name, classes[name], wanted.until)
        return codes

    async def change(self, name: str, wanted: ClassChange) -> dict[str, str]:
        """Invite users, or move the end; return the codes of the new invitations, by user.

        Raises
        ------
        SharedKernelError
            When that cannot be done; nothing has changed then.
        """
        known = await self._sessions.known_users()
        with self._file.changing() as classes:
            found = _check_open(classes.get(name))
            codes = self._invite(classes, name, wanted, known) if wanted.users or wanted.until is None else {}
            if wanted.until is not None:
                self._move_end(name, found, wanted.until)
        return codes

    def _invite(
        self, classes: dict[str, ClassRecord], name: str, wanted: ClassChange, known: tuple[set[str], bool]
    ) -> dict[str, str]:
        record, tokens, (owners, are_all) = classes[name], self._identity.token_file, known
        fresh = [user for user in wanted.users if user not in record.members]
        size = len(record.members) + len(fresh)
        if not wanted.users or size > MOST_MEMBERS:
            _refuse(f"a class has 1 to {MOST_MEMBERS} users, not {size}.")
        self.check_names(wanted.users)
        busy = {user for other in classes.values() for user in other.members}
        if twice := [user for user in fresh if user in busy]:
            _refuse(f"nobody is in two classes at a time, as {_some(twice)} would be.")
        if tokens is not None:
            owners |= tokens.owners()
            if not wanted.allow_known and (found := [user for user in fresh if user in owners]):
                _refuse(
                    f"{_some(found)} {'are users' if len(found) > 1 else 'is a user'} here already, and an invitation "
                    "opens what they have. Give newcomers other names, or, if these are the same people, run it again "
                    "with --known.",
                    reason="known_users",
                )
        given = self._tokens_of(name, wanted.users)
        if given and wanted.replaces is None:
            _refuse(
                f"{_some(sorted(set(given.values())))} used a link already, and the token that it gave stays good. Run "
                "it again with --replace (on the page: Replace link), to end such tokens in case it was not them "
                "(sessions go on), or with --keep, for another machine of theirs.",
                reason="link_used",
            )
        record.spared += self._sessions.of_users(set(fresh))
        # A cluster's front and a hub know users whom this gateway does not know.
        knows_all = tokens is not None and are_all and not self._manager.host
        has_put = self._manager.rules.quotas.has_put
        record.members |= {
            user: ClassMember(is_new=knows_all and user not in owners, had_limits=has_put(user)) for user in fresh
        }
        codes = {}
        for user in wanted.users if tokens is not None else ():
            is_extra = not wanted.replaces and user in given.values()
            record.members[user].invitation, codes[user] = Invitation.make(is_extra=is_extra)
        if wanted.replaces:
            self._remove_tokens(given)
        return codes

    async def add(self, wanted: NewPeople) -> dict[str, str]:
        """Let newcomers in who are in no class; return their tokens, which have no end, by user.

        Raises
        ------
        SharedKernelError
            When somebody is known here, or no tokens are made here; nothing has changed then.
        """
        if (tokens := self._identity.token_file) is None:
            _refuse("this gateway makes no tokens.", reason="not_allowed")
        self.check_names(wanted.users)
        owners, are_all = await self._sessions.known_users()
        if not are_all:
            _refuse(
                "a device does not answer, so who is known is not known; try again later.",
                reason="executor_unavailable",
            )
        owners |= tokens.owners() | {user for found in self._file.classes.values() for user in found.members}
        if known := [user for user in wanted.users if user in owners]:
            _refuse(
                f"{_some(known)} {'are' if len(known) > 1 else 'is'} known here already, and a token opens what they "
                "have. Give newcomers other names; who has a token makes more on the page.",
                reason="known_users",
            )
        return dict(zip(wanted.users, tokens.add_all(wanted.users), strict=True))

    def check_names(self, users: Sequence[str]) -> None:
        """Check that *users* are names of different people, and of no admin.

        Raises
        ------
        Refused
            When they are not.
        """
        if twice := [user for user, count in Counter(users).items() if count > 1]:
            _refuse(f"{_some(twice)} {'are' if len(twice) > 1 else 'is'} named twice.")
        for user in users:
            if not is_user_name(user):
                _refuse(f"{user!r} cannot be a user's name.")
            if self._identity.is_admin(user):
                _refuse(f"{user} is an admin here, and anybody who came in under that name would be one, too.")

    def _move_end(self, name: str, record: ClassRecord, until: datetime.datetime) -> None:
        if until <= utc_now():
            raise Refused(f"{until.isoformat(timespec='minutes')} has passed already.", reason="bad_request")
        if until > utc_now() + datetime.timedelta(days=MOST_DAYS):
            raise Refused(f"a class ends within {MOST_DAYS} days.", reason="bad_request")
        record.until = until
        if self._identity.token_file is not None and (tokens := self._tokens_of(name)):
            self._identity.token_file.expire(tokens, until)
        self._notified.pop(name, None)

    async def end(self, name: str | None) -> tuple[int, int | None]:
        """End a class, the only one if *name* is None, and its sessions now.

        Returns
        -------
        ended, left
            How many sessions were ended, and how many could not be ended yet; None: perhaps some, or something on a
            shelf, on an executor that is away.

        Raises
        ------
        SharedKernelError
            When there is no such class, or its tokens cannot be removed.
        """
        async with self._ending:
            name, now = self.name_of(name), utc_now()
            if not self._file.classes[name].is_over:
                with self._file.changing() as classes:
                    classes[name].until = now
            found = self._file.classes[name]
            self._remove_tokens(tokens := self._tokens_of(name))
            self._ended_tokens.update(tokens)
            ended = await self._sessions.end(found)
            left = self._sessions.num_left(found)
            if left == 0 and not await self._sessions.clear_shelves(found):
                left = None
            if left == 0 or now - self._tried.setdefault(name, now) > _PATIENCE:
                await self._forget(name, ended)
            return ended, left

    async def _forget(self, name: str, ended: int) -> None:
        with self._file.changing() as classes:
            found = classes.pop(name)
        self._tried.pop(name, None)
        self._notified.pop(name, None)
        rules = self._manager.rules
        if name not in rules.quotas.groups:  # a configured group of that name keeps what was put for it
            rules.quotas.withdraw(group=name)
        for user, member in found.members.items():
            if not member.had_limits:  # the next class may have others of these names
                rules.quotas.withdraw(user=user)
        self._audit_log.record("class ended", users=len(found.members), sessions=ended)
        log.info("the class of %d is over; %d sessions were ended", len(found.members), ended)
        await rules.send_all_limits()

    def _tokens_of(self, name: str, users: Collection[str] | None = None) -> dict[str, str]:
        """Return the ids of a class's tokens, with whose they are."""
        return {} if self._identity.token_file is None else self._identity.token_file.in_group(name, users)

    def _remove_tokens(self, tokens: Collection[str]) -> None:
        if tokens and self._identity.token_file is not None:
            self._identity.token_file.remove(*tokens)

    # --- what users do ------------------------------------------------------------------------------------------------

    def look(self, code: str, key: str) -> dict[str, Any] | None:
        """Return what an invitation is for, without using it; None for an unknown code.

        Parameters
        ----------
        code
            Of the invitation.
        key
            What the browser has that used it; empty: nothing.

        Returns
        -------
        dict
            ``user``, ``class``, ``teacher``, ``until``, and whether it was used in this browser: ``again``.

        Raises
        ------
        Refused
            When it cannot be used.
        """
        if (meant := self._file.find(code)) is None:
            return None
        name, user = meant
        found = self._file.classes[name]
        again = self._usable(found, user, key).used is not None
        return {"user": user, "class": name, "teacher": found.teacher, "until": found.until, "again": again}

    def admit(self, code: str, key: str) -> tuple[str, str, datetime.datetime, str] | None:
        """Use the code of an invitation; return its user, a token, the class's end and a key; None for an unknown one.

        The key is to be kept by the browser, which can use the invitation again with it.

        In the browser that has used it, it gives another token in the place of the first.

        Parameters
        ----------
        code, key
            As for :meth:`look`.

        Raises
        ------
        SharedKernelError
            When it cannot be used, or no token can be made.
        """
        if (meant := self._file.find(code)) is None:
            return None
        with self._file.changing() as classes:
            name, user = meant
            found = classes[name]
            invitation, member = self._usable(found, user, key), found.members[user]
            token = self._identity.make_token(user, expires=found.until, group=name)
            earlier, invitation.token = invitation.token, token.rpartition("-")[0]
            invitation.used = invitation.used or utc_now()
            member.joined = member.joined or invitation.used
            key = secrets.token_urlsafe(32)
            invitation.browser = salted_hash(invitation.salt, key)
        self._remove_tokens([earlier] if earlier else [])
        return user, token, found.until, key

    def _usable(self, found: ClassRecord, user: str, key: str) -> Invitation:
        """Return the invitation of *user*, if the browser with *key* may use it."""
        invitation = _check_open(found).members[user].invitation
        if invitation is None or not (invitation.used is None or invitation.was_used_with(key)):
            sentence = f"This invitation of {user} was used already; ask for another one, if that was not you."
            raise Refused(sentence, reason="invitation_used")
        if invitation.has_connected or invitation.token in self._identity.connected_tokens:
            sentence = (
                f"This invitation of {user} was used, and its command has run: pick “Shared GPU” in that JupyterLab, "
                "or ask for another invitation for another computer."
            )
            raise Refused(sentence, reason="invitation_used")
        return invitation

    def has_ended(self, token: str) -> bool:
        """Whether *token* has ended with a class, as far as this gateway remembers."""
        return token.rpartition("-")[0] in self._ended_tokens

    # --- what time does -----------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Notify classes of their end, and end them when their time is over; runs for good."""
        await self._manager.recovery.gathered()  # else sessions of an earlier gateway would be missed
        while True:
            self._keep_connected()
            for name in [*self._file.classes]:
                found = self._file.classes.get(name)  # as it is now: to end another takes a while
                try:
                    if found is not None and not found.is_over:
                        await self._notify(name, found)
                    elif found is not None and not self._ending.locked():
                        await self.end(name)
                except SharedKernelError as error:
                    log.error("the class cannot be ended: %s", error)
            await asyncio.sleep(_PAUSE)

    def _keep_connected(self) -> None:
        """Keep which invitations have led to a machine that is connected, for the next gateway."""
        connected = self._identity.connected_tokens
        if any(one.token in connected and not one.has_connected for *_, one in invitations(self._file.classes)):
            try:
                with self._file.changing() as classes:
                    for *_, one in invitations(classes):
                        one.has_connected = one.has_connected or one.token in connected
            except ConfigError:  # tried again
                return
        connected.clear()

    async def _notify(self, name: str, found: ClassRecord) -> None:
        left = found.until - utc_now()
        if left <= _NOTICE:
            sessions = self._sessions.of_class(found).keys() - self._notified[name]
            self._notified[name] |= sessions
            when = f"This class ends at {_clock(found.until)}, in {format_seconds(left.total_seconds())}"
            what = "save your notebook, its session and all variables end then."
            await self._sessions.notify(sessions, f"{when}: {what}", found)


def _refuse(sentence: str, reason: str = "bad_request") -> NoReturn:
    raise Refused(f"nothing was changed: {sentence}", reason=reason)


def _check_open(found: ClassRecord | None) -> ClassRecord:
    if found is None or found.is_over:
        raise Refused("this class is over.", reason="class_over")
    return found


def _some(users: Sequence[str]) -> str:
    return f"{', '.join(users[:5])}{' …' if len(users) > 5 else ''}"


def _clock(moment: datetime.datetime) -> str:
    local, today = moment.astimezone(), datetime.datetime.now().astimezone().date()
    return f"{local:%H:%M}" if local.date() == today else f"{local:%Y-%m-%d %H:%M}"
