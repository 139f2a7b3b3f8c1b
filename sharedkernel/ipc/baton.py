"""What lets one session hand the device to another without their executor: tokens, and calls.

Each session shares a socket with its executor on which tokens come, at most one at a time. To *take* a token is to read
it, so of the session and its executor exactly one has it. Two tokens with the same number arm a hand-over: who takes
the giver's has released its grant, or else the executor has changed its mind; only who takes the heir's may begin.

A *call* wakes the heir. It comes on a line that all who may ever call it share, and carries the number, which only the
two sessions and their executor know. A call without it is ignored, and one that is lost costs time only.

All sockets are packet sockets, and no call here blocks or raises a signal, whatever the other end does: unlike an
eventfd's or a pipe's, their calls do not depend on flags that everybody can set who shares them.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_TOKEN, _CALL = struct.Struct("=QqQ"), struct.Struct("=Q")
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_PEEK = int(socket.MSG_PEEK)
#: packets that are looked at when a token is taken back: one is there unless its session has put others beside it
_MOST_LOOKED_AT = 16


class Token(NamedTuple):
    """One of the two tokens of an armed hand-over."""

    #: secret, and of this hand-over only
    number: int
    #: persistent bytes that the giver may hold; 0 in the heir's
    limit: int = 0
    #: the line on which the heir is called; 0 in the heir's
    line: int = 0


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends, none of which a program that is started inherits.

    Raises
    ------
    OSError
        When this process can open no more files.
    """
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def adopt(descriptor: int) -> socket.socket:
    """Return the socket of a *descriptor* that was received, which belongs to it from now on."""
    end = socket.socket(fileno=descriptor)
    end.settimeout(None)  # with any other, such as a user's default, Python waits in spite of the flags
    return end


def put(end: socket.socket, token: Token) -> bool:
    """Put *token* on a session's socket; False if that takes nothing."""
    return _send(end, _TOKEN.pack(*token))


def peek(end: socket.socket) -> Token | None:
    """Return the token that is there, and leave it there; None: none is."""
    return _read(end, _PEEK)


def take(end: socket.socket) -> Token | None:
    """Take the token that is there; None: none is."""
    return _read(end, 0)


def take_back(end: socket.socket, token: Token) -> bool:
    """Take *token*, among others that a session may have put there itself; return whether it was there still."""
    for _ in range(_MOST_LOOKED_AT):
        found = take(end)
        if found is None or found == token:
            return found is not None
    return False


def _read(end: socket.socket, flags: int) -> Token | None:
    try:
        return Token(*_TOKEN.unpack(end.recv(_TOKEN.size + 1, _FLAGS | flags)))
    except (OSError, struct.error):
        return None


def call(line: socket.socket, number: int) -> bool:
    """Call with the *number* of a hand-over; False if nobody can be called there."""
    return _send(line, _CALL.pack(number))


class CallReceiver:
    """The end of a line at which a session is called.

    Parameters
    ----------
    end
        Belongs to this from now on.
    most
        Calls that are heard from one :meth:`clear` to the next: others can call as often as they like.
    """

    def __init__(self, end: socket.socket, most: int = 64) -> None:
        self._end = end
        self._most = self._left = most
        #: nobody can call any more
        self._is_over = False

    def fileno(self) -> int | None:
        """Return what is readable when there is a call; None: no more are heard."""
        return self._end.fileno() if self._left and not self._is_over else None

    def clear(self) -> None:
        """Forget the calls that have come."""
        self._left = self._most
        while self.fileno() is not None and self.next() is not None:
            pass
        self._left = self._most

    def next(self) -> int | None:
        """Return the number of the next call, 0 if it has none; None: there is no call."""
        try:
            data = self._end.recv(_CALL.size + 1, _FLAGS)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._left -= 1
        if not data:
            self._is_over = True
            return None
        return int(_CALL.unpack(data)[0]) if len(data) == _CALL.size else 0

    def close(self) -> None:
        """Hear nothing any more."""
        self._end.close()


def _send(end: socket.socket, data: bytes) -> bool:
    try:
        return end.send(data, _FLAGS) == len(data)
    except OSError:
        return False


class Lines:
    """The lines on which this session can call others, by number; the oldest goes where there are too many.

    Parameters
    ----------
    most
        Lines that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[int, socket.socket] = {}

    def add(self, number: int, line: socket.socket) -> None:
        """Keep *line* as *number*."""
        self.remove(number)
        self._lines[number] = line
        if len(self._lines) > self._most:
            self.remove(next(iter(self._lines)))

    def remove(self, number: int) -> None:
        """Close a line, if it is there."""
        if (line := self._lines.pop(number, None)) is not None:
            line.close()

    def call(self, number: int, hand_over: int) -> None:
        """Call on line *number*, if it is there; one that takes no call is closed."""
        line = self._lines.get(number)
        if line is not None and not call(line, hand_over):
            self.remove(number)

    def close(self) -> None:
        """Close all of them."""
        for number in list(self._lines):
            self.remove(number)
