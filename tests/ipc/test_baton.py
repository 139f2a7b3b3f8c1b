"""Tokens and calls: taken once, and never a reason to wait, whatever the other end does."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharedkernel.ipc import baton
from sharedkernel.ipc.baton import CallReceiver, Lines, Token

TOKEN = Token(number=7, limit=1 << 40, line=3)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = baton.make_pair()
    yield pair
    for end in pair:
        end.close()


def test_a_token_is_taken_once(ends: tuple[socket.socket, socket.socket]) -> None:
    """By one of those who share the socket, whoever is first; to look at it takes nothing."""
    putter, mine = ends
    with mine.dup() as theirs, ThreadPoolExecutor(2) as threads:
        for number in range(1, 200):
            token = Token(number, -1, 0)
            assert baton.put(putter, token)
            assert baton.peek(mine) == baton.peek(theirs) == token
            taken = list(threads.map(baton.take, (mine, theirs)))
            assert sorted(taken, key=lambda each: each is None) == [token, None]


def test_a_token_is_taken_back_from_among_others(ends: tuple[socket.socket, socket.socket]) -> None:
    """Those are not the executor's; where there are too many of them it counts as gone."""
    putter, mine = ends
    for other in (Token(1), TOKEN, Token(2)):
        assert baton.put(putter, other)
    assert baton.take_back(mine, TOKEN)
    assert not baton.take_back(mine, TOKEN)
    putter.send(b"no token")
    assert baton.take(mine) is None
    for number in range(100, 140):
        baton.put(putter, Token(number))
    baton.put(putter, TOKEN)
    assert not baton.take_back(mine, TOKEN)


def test_nothing_waits_although_the_other_end_says_so(ends: tuple[socket.socket, socket.socket]) -> None:
    """Flags of a shared socket are everybody's."""
    putter, mine = ends
    for end in ends:
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    assert baton.take(mine) is baton.peek(mine) is None
    while baton.put(putter, TOKEN):
        pass
    mine.shutdown(socket.SHUT_RDWR)
    assert not baton.put(putter, TOKEN)


def test_a_default_timeout_makes_nothing_wait(ends: tuple[socket.socket, socket.socket]) -> None:
    """Users set one for sockets of their own, and Python waits for it in spite of flags."""
    socket.setdefaulttimeout(600)
    try:
        with baton.adopt(ends[1].dup().detach()) as mine:
            assert baton.take(mine) is None
            receiver = CallReceiver(mine)
            assert receiver.next() is None
    finally:
        socket.setdefaulttimeout(None)


def test_calls_are_heard_up_to_a_number(ends: tuple[socket.socket, socket.socket]) -> None:
    """Others can call as often as they like; who waits again hears as many again."""
    line, mine = ends
    receiver = CallReceiver(mine, most=3)
    for number in (5, 6, 7, 8):
        assert baton.call(line, number)
    assert [receiver.next() for _ in range(3)] == [5, 6, 7]
    assert receiver.fileno() is None
    receiver.clear()
    assert receiver.fileno() == mine.fileno()
    assert receiver.next() is None
    line.send(b"no call")
    assert receiver.next() == 0
    line.shutdown(socket.SHUT_RDWR)
    assert receiver.next() is None
    assert receiver.fileno() is None


def test_the_oldest_line_goes(ends: tuple[socket.socket, socket.socket]) -> None:
    """So does one at whose end nobody is."""
    lines, receiver = Lines(2), CallReceiver(ends[1])
    pairs = [baton.make_pair() for _ in range(2)]
    lines.add(1, ends[0].dup())
    for number, (line, _) in enumerate(pairs, start=2):
        lines.add(number, line)
    lines.call(1, 9)
    assert receiver.next() is None
    pairs[0][1].close()
    lines.call(2, 9)
    assert pairs[0][0].fileno() == -1
    lines.call(3, 9)
    assert CallReceiver(pairs[1][1]).next() == 9
    lines.close()
    assert pairs[1][0].fileno() == -1
    pairs[1][1].close()
