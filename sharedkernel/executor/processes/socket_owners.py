"""The owners of sockets: which processes of which user hold them.

Under accounts of their own, users own the sockets that their account has made or accepted and that a process of theirs
holds, also one that has left its session; nobody else's processes are looked at. Otherwise what a session started is
its user's, and a socket that another user's process holds as well is nobody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import psutil

from sharedkernel import protocol
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.process_tree import all_children, program_name, tree

#: shown as the program of a socket that a notebook's own process has
_NOTEBOOK = "notebook"


class _Member(NamedTuple):
    """A process of a user's."""

    user: str
    #: None: it descends from no session
    session: str | None
    pid: int


class SocketOwners:
    """Finds the owners of sockets among the users of this executor.

    Parameters
    ----------
    sessions
        By id; those that linger, too.
    isolation
        How users are kept apart.
    """

    def __init__(self, sessions: Mapping[str, SessionHandle], isolation: Isolation) -> None:
        self._sessions = sessions
        self._isolation = isolation
        #: the last look, of each user where they have accounts of their own, else of all of them
        self._scans: dict[str, asyncio.Future[dict[int, list[_Member]]]] = {}

    async def find(self, user: str, sockets: Mapping[int, int]) -> list[protocol.OwnedSocket]:
        """Return those of *sockets*, accounts by inode, that are of *user*; none if they have no session here.

        Processes are looked at once at a time, however many ask, and always after they have asked.
        """
        own = [process for process in self._sessions.values() if process.user == user]
        if not own:
            self._scans.pop(user, None)
            return []
        if not sockets:
            return []
        apart = self._isolation.uses_accounts
        whose = user if apart else ""
        if (before := self._scans.get(whose)) is not None:
            await asyncio.wait([before])
        if self._scans.get(whose) is before:
            members = [_Member(each.user or "", name, each.pid) for name, each in self._sessions.items()]
            leaders = [each for each in members if each.user == user or not apart]
            look = partial(_look, leaders, {process.uid: user for process in own} if apart else {})
            self._scans[whose] = asyncio.ensure_future(asyncio.to_thread(look))
        holders = await asyncio.shield(self._scans[whose])
        found = []
        for inode, uid in sockets.items():
            members = holders.get(inode, [])
            may_be_theirs = not apart or (uid == own[0].uid and not self._isolation.is_trusted(uid))
            if may_be_theirs and {member.user for member in members} == {user}:
                first = min(members, key=lambda member: member.pid)
                is_notebook = any(first.pid == process.pid for process in own)
                program = _NOTEBOOK if is_notebook else program_name(first.pid)
                found.append(protocol.OwnedSocket(inode=inode, program=program, session=first.session))
        return found


def _look(leaders: list[_Member], accounts: Mapping[int, str]) -> dict[int, list[_Member]]:
    """Return who holds each socket, by inode, of the processes below *leaders* and those of *accounts*."""
    members: dict[int, _Member] = {}
    for pid in psutil.pids() if accounts else ():
        with contextlib.suppress(OSError):
            if (user := accounts.get(os.stat(f"/proc/{pid}").st_uid)) is not None:
                members[pid] = _Member(user, None, pid)
    children = all_children()
    for leader in leaders:
        members |= {pid: leader._replace(pid=pid) for pid in tree([leader.pid], children)}
    holders: defaultdict[int, list[_Member]] = defaultdict(list)
    for pid, member in members.items():
        for link in _links(pid):
            if link.startswith("socket:["):
                holders[int(link[8:-1])].append(member)
    return holders


def _links(pid: int) -> set[str]:
    """Return what the descriptors of process *pid* lead to; nothing if it is gone or cannot be looked at."""
    links = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return links
