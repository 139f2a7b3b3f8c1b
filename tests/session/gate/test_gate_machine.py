"""The gate does what its tables say, whatever happens, in whatever order: a real gate and link, a played executor."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import FORCE_SIGNAL, Page, Turn, Word
from sharedkernel.session.connection import Link
from sharedkernel.session.gate.gate import Gate
from sharedkernel.session.gate.standing import GateParts
from sharedkernel.session.gate.table import AT_BOUNDARY, AT_FORCE_SIGNAL, TRANSITIONS, Input, Look, Reason, Step
from sharedkernel.session.memory.growth import STEP, Growth
from sharedkernel.session.memory.host_meter import HostMeter
from sharedkernel.session.memory.lease_check import LeaseCheck
from sharedkernel.session.offload.residency import HostMover, Residency
from sharedkernel.session.progress.progress import Forecast, Progress
from sharedkernel.session.wait_display import WaitDisplay

#: seconds that anything may take, on a busy machine
PATIENCE = 60.0
GIB = 1 << 30
ANSWERS = ("grant", "refuse", "interrupt", "grant an interrupted one")
#: messages that follow from a change of standing; sections that are short are reported as one
HEARD = (protocol.DeviceWantedReport, protocol.DeviceWantWithdrawnReport, protocol.GrantReleasedReport)


class GateUnderTest:
    """A gate in this process, and its executor in a thread."""

    def __init__(self, directory: Path) -> None:
        self.page = Page.create("test")
        self.words = self.page.words
        self.answer = "grant"
        self._heard: list[Any] = []
        self._synced = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "executor.sock"))
        self._listener.listen()
        meter, self.lease, forecast = HostMeter(self.page), LeaseCheck(), Forecast(Progress())
        self.growth = Growth(meter, self.lease)
        self.link = Link(str(directory / "executor.sock"))
        parts = GateParts(
            page=self.page,
            meter=meter,
            link=self.link,
            notice=Mock(spec=WaitDisplay, is_shown=False),
            residency=Residency(HostMover(meter), meter),
            growth=self.growth,
            forecast=forecast,
        )
        self.gate = Gate(parts, check_memory=self.lease.check, why_busy=lambda: None)
        self._before = {number: signal.getsignal(number) for number in (FORCE_SIGNAL, signal.SIGINT)}
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
        self._loop = asyncio.new_event_loop()
        self.gate.enforce(Mock(), self._loop)
        (self.mode,) = _get_current_dispatch_mode_stack()
        self._executor = threading.Thread(target=self._serve, daemon=True)
        self._executor.start()
        self.link.start(self._hello, self._on_message)
        assert self._synced.wait(PATIENCE)

    def _hello(self) -> protocol.SessionHello:
        return protocol.SessionHello(
            version=protocol.PROTOCOL_VERSION,
            process="test",
            connection={},
            memory=protocol.Memory(persistent=0, framework=0),
            data_bytes=0,
            **self.gate.standing.resume_state(),
        )

    def _on_message(self, message: Any) -> None:
        if isinstance(message, protocol.Welcome | protocol.AskActivity):
            self._synced.set()
        else:
            self.gate.on_message(message)

    def _serve(self) -> None:
        self._connection, _ = self._listener.accept()
        decoder = protocol.Decoder(protocol.ToExecutor)
        while data := self._connection.recv(65536):
            for message in decoder.feed(data):
                self._hear(message)

    def _hear(self, message: Any) -> None:
        if isinstance(message, HEARD):
            self._heard.append(message)
        match message:
            case protocol.SessionHello():
                device = protocol.Device(name="test", kind="host", capacity_bytes=GIB, reserve_bytes=0)
                self.say(protocol.Welcome(version=protocol.PROTOCOL_VERSION, device=device))
            case protocol.ActivityReport():
                self.say(protocol.AskActivity())
            case protocol.DeviceWantedReport():
                if self.answer == "grant":
                    self.say(protocol.Granted())
                elif self.answer == "refuse":
                    self.say(protocol.RefusedGrant(reason="quota", message="no"))
                else:
                    os.kill(os.getpid(), signal.SIGINT)
            case protocol.DeviceWantWithdrawnReport():
                if self.answer == "grant an interrupted one":
                    self.say(protocol.Granted())
                self.say(protocol.WithdrawalSeen())

    def say(self, message: protocol.Message) -> None:
        """Send *message* to the gate."""
        self._connection.sendall(protocol.encode(message))

    def heard(self) -> list[str]:
        """Return what the executor has heard since the last time; of releases, where they were."""
        for _ in range(2):  # what the gate's link answers comes with the second
            self._synced.clear()
            self.link.send(protocol.ActivityReport(found=()))
            assert self._synced.wait(PATIENCE)
        heard, self._heard = self._heard, []
        points = [
            message.at if isinstance(message, protocol.GrantReleasedReport) else str(message.__struct_config__.tag)
            for message in heard
        ]
        # a request that is refused is sent again where something was freed
        return [point for point, _ in itertools.groupby(points)]

    def close(self) -> None:
        """Leave this process as it was."""
        self.gate.standing.disable()
        self._loop.close()
        self.mode.take_out()  # type: ignore[attr-defined]
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.link.close()
        self._executor.join(PATIENCE)
        self._listener.close()
        self._connection.close()


class GateMachine(RuleBasedStateMachine):
    """Sections, operations, boundaries, signals, onlookers and answers; the tables say what follows."""

    subject: GateUnderTest

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.words = self.subject.gate, self.subject.words
        self.turn, self.is_in = Turn.IDLE, True
        self.sections: list[contextlib.AbstractContextManager[None]] = []
        self.looks: dict[int, Look] = {}
        self.expected: list[str] = []
        self.used = 2 * GIB
        self.subject.answer = "grant"

    # --- what the tables say ------------------------------------------------------------------------------------------

    def take(self, given: Input) -> bool:
        turn = TRANSITIONS.get((self.turn, given))
        self.turn = self.turn if turn is None else turn
        return turn is not None

    @property
    def look(self) -> Look:
        return max(self.looks.values(), default=Look.NONE)

    def release(self, at: str) -> None:
        if self.take(Input.RELEASED):
            self.expected.append(at)
            self.is_in = True

    def ask(self, answer: str, *, then_out: bool) -> type[BaseException] | None:
        """Expect a request; return the error that follows."""
        self.subject.answer = answer
        if not self.sections:  # one is opened and closed at once: nothing tells when this code ends
            self.take(Input.OPENED)
            self.take(Input.CLOSED)
        self.take(Input.WANTED)
        self.expected.append("DeviceWanted")
        if answer == "grant":
            self.take(Input.GRANTED)
            self.is_in = self.is_in and not then_out
            return None
        if answer == "refuse":
            self.take(Input.REFUSED)
            return torch.OutOfMemoryError
        self.expected.append("DeviceWantWithdrawn")
        if answer == "grant an interrupted one":
            self.take(Input.GRANTED)
        self.take(Input.DROPPED)
        self.release("boundary")
        return KeyboardInterrupt

    def do(self, error: type[BaseException] | None, act: Callable[[], object]) -> None:
        with pytest.raises(error) if error is not None else contextlib.nullcontext():
            act()
        self.subject.answer = "grant"

    # --- what happens -------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.sections) < 3)
    @rule()
    def section_opens(self) -> None:
        if not self.sections:
            self.take(Input.OPENED)
        section = self.gate.sections.open()
        section.__enter__()
        self.sections.append(section)

    @precondition(lambda self: self.sections)
    @rule()
    def section_closes(self) -> None:
        section = self.sections.pop()
        self.is_in = True
        if not self.sections:
            self.release("cell")
            self.take(Input.CLOSED)
        section.__exit__(None, None, None)

    @rule(answer=st.sampled_from(ANSWERS))
    def operation(self, answer: str) -> None:
        error = None
        if self.is_in and self.turn is Turn.HOLDING:
            self.is_in = False
        elif self.is_in:
            error = self.ask(answer, then_out=True)
        self.do(error, lambda: torch.ones(1))

    @rule(
        is_preempted=st.booleans(),
        is_due=st.booleans(),
        is_known=st.booleans(),
        answer=st.sampled_from(ANSWERS),
    )
    def boundary(self, is_preempted: bool, is_due: bool, is_known: bool, answer: str) -> None:
        self.gate.source_read("code that is not known to go on at once")
        self.words[Word.PREEMPT], self.gate.standing.release_due = is_preempted, is_due
        reason = Reason.PREEMPTED if is_preempted else Reason.DUE if is_due else Reason.NONE
        error = None
        if self.turn is Turn.HOLDING:
            if AT_BOUNDARY[reason][self.look] is Step.RELEASE:
                self.release("boundary")
                if self.look:  # what looks on must not find the mode at the next operation
                    error = self.ask(answer, then_out=True)
            else:
                self.is_in = False
        # known boundaries are quiet for some milliseconds, unless the executor asks
        self.do(
            error if error is KeyboardInterrupt else None,
            lambda: self.gate.boundary(is_known=is_known and (is_preempted or not is_due)),
        )
        self.words[Word.PREEMPT], self.gate.standing.release_due = 0, False

    @rule(is_preempted=st.booleans(), is_due=st.booleans(), is_summoned=st.booleans(), answer=st.sampled_from(ANSWERS))
    def force_signal(self, is_preempted: bool, is_due: bool, is_summoned: bool, answer: str) -> None:
        self.words[Word.PREEMPT], self.gate.standing.release_due = is_preempted, is_due
        self.words[Word.SUMMONED] = is_summoned
        error = None
        if self.turn is Turn.HOLDING:
            reason = Reason.PREEMPTED if is_preempted else Reason.DUE if is_due else Reason.NONE
            self.step_at_signal(reason)
        elif self.turn is Turn.READY and is_summoned:
            error = self.ask(answer, then_out=False)
        self.do(error if error is KeyboardInterrupt else None, lambda: signal.raise_signal(FORCE_SIGNAL))
        self.words[Word.PREEMPT] = self.words[Word.SUMMONED] = 0
        self.gate.standing.release_due = False

    def step_at_signal(self, reason: Reason) -> None:
        match AT_FORCE_SIGNAL[reason][self.look]:
            case Step.RELEASE:
                self.release("yield")
            case Step.PUT_IN:
                self.is_in = True
            case Step.TAKE_OUT:
                self.is_in = False

    @rule()
    def memory_gets_scarce(self) -> None:
        """Let the meter take a sample while the limit is near."""
        self.used += 2 * STEP
        self.subject.lease.allowance = protocol.Allowance(
            limit_bytes=self.used + 1, quota_bytes=64 * self.used, others_bytes=0, capacity_bytes=64 * self.used
        )
        if self.turn is Turn.HOLDING and not self.is_in and not self.look:
            self.step_at_signal(Reason.SCARCE)
        self.gate.watch_memory(self.used)
        self.subject.lease.allowance = None

    @rule(look=st.sampled_from((Look.SOFT, Look.FIRM)), answer=st.sampled_from(ANSWERS))
    def look_begins(self, look: Look, answer: str) -> None:
        error = None if self.turn is Turn.HOLDING else self.ask(answer, then_out=True)
        number = len(self.looks)
        if error is None:
            self.looks[number] = look
            self.is_in = False
        self.do(error, lambda: self.gate.look_begins(number, is_firm=look is Look.FIRM))

    @precondition(lambda self: self.looks)
    @rule()
    def look_ends(self) -> None:
        number, _ = self.looks.popitem()
        self.gate.look_ends(number)

    @rule(is_grant=st.booleans())
    def late_answer(self, is_grant: bool) -> None:
        """Give an answer that has crossed with a withdrawal, or is a repeated one."""
        if not self.take(Input.GRANTED if is_grant else Input.REFUSED) and is_grant and self.turn is not Turn.HOLDING:
            self.expected.append("boundary")
        self.subject.say(protocol.Granted() if is_grant else protocol.RefusedGrant(reason="quota", message="no"))

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def it_stands_where_the_table_says(self) -> None:
        assert self.subject.heard() == self.expected
        self.expected = []
        assert self.gate.standing.turn is self.turn
        assert self.words[Word.TURN] == self.turn

    @invariant()
    def the_mode_is_where_it_belongs(self) -> None:
        is_in = self.subject.mode in _get_current_dispatch_mode_stack()
        assert is_in == self.is_in
        assert is_in or self.turn is Turn.HOLDING

    def teardown(self) -> None:
        while self.looks:
            self.look_ends()
        while self.sections:
            self.section_closes()
        if self.turn is not Turn.IDLE:  # an operation outside a section has left it there
            self.section_opens()
            self.section_closes()
        self.it_stands_where_the_table_says()


@pytest.fixture
def subject() -> Iterator[GateUnderTest]:
    with tempfile.TemporaryDirectory(prefix="sk-") as directory:
        subject = GateUnderTest(Path(directory))
        yield subject
        subject.close()


@pytest.mark.heavy
def test_the_gate_does_what_its_tables_say(subject: GateUnderTest) -> None:
    """Its standing, its page, its messages and its mode, after each step."""
    GateMachine.subject = subject
    run_state_machine_as_test(GateMachine, settings=settings(stateful_step_count=40))


def test_a_forked_child_passes_everything_and_writes_nothing(subject: GateUnderTest) -> None:
    """It computes without a grant, and its boundaries count for nothing; its parent stands where it stood."""
    with subject.gate.sections.open():
        torch.ones(1)
        assert subject.heard() == ["DeviceWanted"]
        words = list(subject.words)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException), subject.gate.sections.open():
                torch.ones(1)
                os._exit(42 * subject.gate.standing.is_disabled)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert (list(subject.words), subject.heard()) == (words, [])
        assert subject.gate.standing.is_held
    assert subject.heard() == ["cell"]
