"""Arm hand-overs from a session to its heir, and find out what came of each before anything else happens.

The core names a holder's heir together with the revocation (:class:`~sharedkernel.scheduling.model.actions.Heir`). Here
both get a token (`ipc/baton.py`). From then on the holder can hand the device on by itself: it takes its token and
calls its heir, which takes its own and begins. Reports follow.

Before the next event, whatever it is, the executor takes both tokens back (:meth:`Succession.settle`):

- it gets both: nothing happened, and the core decides as ever;
- the holder's is gone: the holder has released its grant, and its heir has the device. It may know that already, since
  its own token is gone as well, or it is told as of any grant. That is so even if the holder ended before it called;
- only the heir's is gone: one of them lies. The device stays with the holder, whose token is the proof; the heir is
  made to yield if it should have begun; and neither ever takes part again.

So a death in any window leaves one holder. That of the executor does, too: sessions forget their tokens when they greet
another executor, and say whether they hold the device.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sharedkernel import protocol
from sharedkernel.errors import Refused
from sharedkernel.executor.processes.process import SessionHandle, id_of, profile_of
from sharedkernel.ipc import baton
from sharedkernel.ipc.baton import Token
from sharedkernel.ipc.fd_server import FdHandler, FdReply
from sharedkernel.ipc.shared_page import Word
from sharedkernel.scheduling.model import actions, events
from sharedkernel.scheduling.model.types import SessionId
from sharedkernel.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

#: lines that a session has at a time; it closes the oldest itself where there are more
MOST_LINES = 16


@dataclass(slots=True, eq=False)
class _Member:
    """What the executor has of one session that takes part."""

    #: names the line to this session
    line: int
    #: where tokens are put, and where they are taken back; None: the session has not fetched its end
    tokens_in: socket.socket | None = None
    tokens: socket.socket | None = None
    #: on which this session is called
    calls: socket.socket | None = None
    #: it was told to fetch its ends
    is_introduced: bool = False
    #: lines to others that it was told of, the oldest first; whether it has fetched them
    lines: dict[int, bool] = field(default_factory=dict)

    def close(self) -> None:
        for end in (self.tokens_in, self.tokens, self.calls):
            if end is not None:
                end.close()
        self.tokens_in = self.tokens = self.calls = None


@dataclass(frozen=True, slots=True)
class _Armed:
    """A hand-over that may happen."""

    giver: SessionHandle
    heir: SessionHandle
    givers_token: Token
    heirs_token: Token


class Succession:
    """The hand-overs of one executor.

    Parameters
    ----------
    sessions
        Processes that serve a session, by its id.
    prepare
        Called with a heir: its lease is to be what it would be with a grant.
    """

    def __init__(self, sessions: Mapping[str, SessionHandle], prepare: Callable[[SessionHandle], None]) -> None:
        self._sessions = sessions
        self._prepare = prepare
        #: by process
        self._members: dict[str, _Member] = {}
        self._last_line = 0
        self._armed: _Armed | None = None

    def close(self) -> None:
        """Arm nothing any more; what is armed, the next executor hears of from the sessions."""
        self._armed = None
        for member in self._members.values():
            member.close()
        self._members.clear()

    # --- who takes part -----------------------------------------------------------------------------------------------

    def ended(self, process: SessionHandle) -> None:
        """Forget a session that has ended, or has itself forgotten all tokens and lines (after :meth:`settle`)."""
        member = self._members.pop(process.process, None)
        if member is None:
            return
        member.close()
        for other in self._sessions.values():
            known = self._members.get(other.process)
            if known is not None and known.lines.pop(member.line, None) is not None:
                other.send(protocol.LineClosed(line=member.line))

    def _introduce(self, giver: SessionId, heir: SessionId, *, may_replace: bool) -> bool:
        """Have two sessions fetch what they lack for a hand-over, maybe in place of the giver's oldest line.

        Return whether they lack nothing.
        """
        one, other = self._sessions.get(giver), self._sessions.get(heir)
        if one is None or other is None or one.stamp != other.stamp:
            return False
        if not (one.can_inherit and other.can_inherit) or one.is_barred or other.is_barred:
            return False
        mine, theirs = self._member(one), self._member(other)
        for process, member in ((one, mine), (other, theirs)):
            if not member.is_introduced and process.transport is not None:
                member.is_introduced = True
                process.send(protocol.Introduced(line=0))
        has_room = may_replace or len(mine.lines) < MOST_LINES
        if theirs.calls is not None and theirs.line not in mine.lines and has_room and one.transport is not None:
            mine.lines[theirs.line] = False
            if len(mine.lines) > MOST_LINES:
                del mine.lines[next(iter(mine.lines))]
            one.send(protocol.Introduced(line=theirs.line))
        return mine.tokens is not None and theirs.tokens is not None and mine.lines.get(theirs.line, False)

    def introduce_heirs(self, scheduler: Scheduler) -> None:
        """Introduce who would follow the holders now, before they need each other."""
        if scheduler.config.names_heirs:
            for holder in scheduler.clock.holders.values():
                if (heir := scheduler.heir(holder.id)) is not None:
                    self._introduce(holder.id, heir, may_replace=False)

    def _member(self, process: SessionHandle) -> _Member:
        member = self._members.get(process.process)
        if member is None:
            self._last_line += 1
            member = self._members[process.process] = _Member(self._last_line)
        return member

    def handlers(self, settle: Callable[[], None]) -> dict[type[protocol.Message], FdHandler[SessionHandle]]:
        """Return what answers requests on the descriptor socket.

        Parameters
        ----------
        settle
            Called before a session's tokens become void: has :meth:`settle` called, and what that returns handled.
        """

        def give_baton(process: SessionHandle, message: protocol.FetchBaton, _: list[int]) -> FdReply:
            settle()
            return self._give_baton(process, message)

        return {protocol.FetchBaton: give_baton, protocol.FetchLine: self._give_line}

    def _give_baton(self, process: SessionHandle, message: protocol.FetchBaton) -> FdReply:
        member = self._members.get(process.process)
        if member is None:
            raise Refused("this session takes no part in hand-overs.", reason="no_baton")
        member.close()
        (member.tokens_in, member.tokens), (member.calls, called) = baton.make_pair(), baton.make_pair()
        return FdReply(protocol.Done(request=message.request), [member.tokens.dup().detach(), called.detach()])

    def _give_line(self, process: SessionHandle, message: protocol.FetchLine, _: list[int]) -> FdReply:
        own = self._members.get(process.process)
        found = next((member for member in self._members.values() if member.line == message.line), None)
        if own is None or message.line not in own.lines or found is None or found.calls is None:
            raise Refused("there is no such session any more.", reason="no_line")
        own.lines[message.line] = True
        return FdReply(protocol.Done(request=message.request), [found.calls.dup().detach()])

    # --- hand-overs ---------------------------------------------------------------------------------------------------

    def arm(self, named: actions.Heir) -> None:
        """Arm a hand-over, if both sessions can take part in it now."""
        if not self._introduce(named.session, named.heir, may_replace=True):
            return
        giver, heir = self._sessions[named.session], self._sessions[named.heir]
        if not (_is_plain(giver) and _is_plain(heir)):
            return
        mine, theirs = self._members[giver.process], self._members[heir.process]
        assert mine.tokens_in is not None
        assert theirs.tokens_in is not None
        self._prepare(heir)
        number = secrets.randbits(63) | 1
        armed = _Armed(giver, heir, Token(number, named.limit, theirs.line), Token(number))
        # the heir's comes first: a giver that is quick calls it at once
        if not baton.put(theirs.tokens_in, armed.heirs_token):
            return
        if baton.put(mine.tokens_in, armed.givers_token):
            self._armed = armed
        elif not self._take_back(heir, armed.heirs_token):
            self._bar(armed)

    def settle(self) -> events.GrantReleased | None:
        """Disarm what is armed; return what had happened before that, if anything."""
        armed = self._armed
        heir = None if armed is None else self.released(armed.giver)
        if armed is None or heir is None:
            return None
        armed.giver.grant.is_handed_on = True
        memory = profile_of(armed.giver.memory)
        return events.GrantReleased(session=id_of(armed.giver), at="boundary", memory=memory, heir=heir)

    def released(self, process: SessionHandle) -> SessionId | None:
        """Disarm what is armed for *process*, which has just released its grant; return its heir if it handed it on."""
        armed = self._armed
        if armed is None or armed.giver is not process:
            return None
        self._armed = None
        is_givers_there = self._take_back(armed.giver, armed.givers_token)
        is_heirs_there = self._take_back(armed.heir, armed.heirs_token)
        if not is_givers_there:
            armed.heir.grant.has_begun = not is_heirs_there
            return id_of(armed.heir)
        if not is_heirs_there:
            self._bar(armed)
        return None

    def _take_back(self, process: SessionHandle, token: Token) -> bool:
        member = self._members.get(process.process)
        return member is not None and member.tokens is not None and baton.take_back(member.tokens, token)

    def _bar(self, armed: _Armed) -> None:
        log.warning(
            "session %s took a token that session %s had not released the device for; neither hands it on any more",
            armed.heir.session,
            armed.giver.session,
        )
        for process in (armed.giver, armed.heir):
            process.is_barred = True
            self.ended(process)
        armed.heir.grant.is_unsanctioned = True
        armed.heir.page.words[Word.PREEMPT] = 1


def _is_plain(process: SessionHandle) -> bool:
    """Whether a process is told of its grants at once, and nothing is the matter with the one it has."""
    grant = process.grant
    is_odd = grant.is_stopped or grant.is_unsanctioned or grant.is_lane_coming or grant.is_handed_on
    return process.transport is not None and not process.growth and not is_odd
