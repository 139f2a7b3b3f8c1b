"""The mode that notices the first device operation, among modes of the user's own."""

from __future__ import annotations

import contextlib
import signal
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from sharedkernel.ipc.shared_page import FORCE_SIGNAL
from sharedkernel.session.gate.dispatch_mode import DeviceMode


class Counting(TorchDispatchMode):
    """A mode as users write them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def noticed() -> Iterator[list[int]]:
    """Count what a mode notices; the mode is `noticed_mode`."""
    yield []
    assert _get_current_dispatch_mode_stack() == []


def test_an_error_keeps_no_operand() -> None:
    """Not by the frames behind what it passed on its way to its user, who has it for as long as they like."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    operand = torch.ones(2)
    is_there = weakref.ref(operand)
    mode = DeviceMode(interrupt)
    mode.put_in()
    try:
        with pytest.raises(KeyboardInterrupt) as error:
            operand.sum()
    finally:
        mode.take_out()
    del operand
    assert error.tb.tb_next is not None
    assert is_there() is None


@pytest.mark.heavy
def test_it_leaves_the_users_modes_in_order(noticed: list[int]) -> None:
    """Put in and taken out under two modes of the user's, which then leave in order."""
    mode = DeviceMode(lambda: noticed.append(1))
    with Counting() as outer, Counting() as inner:
        mode.put_in()
        assert _get_current_dispatch_mode_stack() == [mode, outer, inner]
        torch.ones(2)
        assert (outer.count, inner.count, len(noticed)) == (1, 1, 1)
        assert mode.take_out()
        assert _get_current_dispatch_mode_stack() == [outer, inner]


def test_a_mode_entered_before_may_end_after(noticed: list[int]) -> None:
    """The mode goes in inside a user's mode and stays in when that one ends."""
    mode = DeviceMode(lambda: noticed.append(1))
    with Counting():
        mode.put_in()
    assert _get_current_dispatch_mode_stack() == [mode]
    torch.ones(2)
    assert noticed
    mode.take_out()


def test_it_cannot_leave_inside_its_own_handler_and_says_so(noticed: list[int]) -> None:
    """Taking it out while it handles an operation fails without harm."""
    outcomes: list[bool] = []
    mode = DeviceMode(lambda: outcomes.append(mode.take_out()))
    mode.put_in()
    torch.ones(2)
    assert outcomes == [False]
    assert mode.take_out()


@contextlib.contextmanager
def leaving_at_once(noticed: list[int]) -> Iterator[list[bool]]:
    """Have a mode in that asks to be taken out whenever it may leave; yield whether it was, each time."""
    mode = DeviceMode(lambda: noticed.append(1), may_leave=lambda: True)
    left: list[bool] = []
    before = signal.signal(FORCE_SIGNAL, lambda *_: left.append(mode.take_out()))
    mode.put_in()
    try:
        yield left
    finally:
        signal.signal(FORCE_SIGNAL, before)


def test_it_asks_to_be_taken_out_between_two_lines(noticed: list[int]) -> None:
    """The signal comes once the operation is over, where the mode is on the stack again, and before the next one."""
    with leaving_at_once(noticed) as left:
        a = torch.ones(2)
        b = a + a
        _ = b * b
    assert left == [True]
    assert len(noticed) == 1


def test_it_asks_to_be_taken_out_after_an_error_too(noticed: list[int]) -> None:
    """And the error's traceback has no frame of the mode in it."""
    a, b = torch.ones(2, 3), torch.ones(2, 3)
    with leaving_at_once(noticed) as left, pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        torch.mm(a, b)
    assert len(noticed) == 1
    assert len(caught.traceback) == 1
    assert left == [True]
