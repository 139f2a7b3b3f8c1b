"""Three threads and a cell do random things behind the gate, under an executor that does random things to them.

`FUZZ_SECONDS=600 python -m pytest --timeout=0 tests/session/gate/test_random_threads.py` goes on for that many seconds,
with other random numbers each round; `FUZZ_SEED=7` begins with those of round 7. 10,000 launches take 25 rounds.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time

import pytest

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import FORCE_SIGNAL, Turn, Word
from tests.session.harness import PATIENCE, SessionUnderTest, wait_until

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
#: rounds where no time is given: in the first the user does not interrupt, in the second they do
ROUNDS = 2
#: things that a thread does in a round
STEPS = 100

#: what the notebook does: `work` depends on its seed alone, however it is stopped, refused and moved meanwhile
_PROGRAM = """\
from concurrent.futures import ThreadPoolExecutor
import faulthandler, importlib, logging, pathlib, queue, random, sys, tempfile, threading, time
torch.set_num_threads(1)
kept = torch.arange(1 << 19, dtype=torch.float64).sin()
directory = tempfile.mkdtemp()
pathlib.Path(directory, "computes.py").write_text("import torch\\nvalue = torch.arange(6.0).cos().sum().item()\\n")
sys.path.insert(0, directory)
import computes
class Computes(logging.Handler):
    def emit(self, record):
        record.total = torch.full((3,), float(record.args[0])).sum().item()
log = logging.getLogger("fuzz")
log.propagate = False
log.addHandler(Computes())
log.setLevel(logging.INFO)
handed, lock, total, refused = queue.Queue(), threading.Lock(), 0, 0
compiled = torch.compile(lambda x: (x * 2).sin() + 1, backend="eager")
mapped = torch.func.vmap(lambda row: (row * row).sum())
def piece(number):
    return kept[number * 1000 : number * 1000 + 64].reshape(8, 8)
def operate(number):
    return (piece(number) @ piece(number).T + 1).tanh()
def backward(number):
    leaf = piece(number).clone().requires_grad_()
    (leaf @ leaf).square().mean().backward()
    return leaf.grad
def compile(number):
    return compiled(piece(number))
def map_rows(number):
    return mapped(piece(number))
def fail(number):
    try:
        piece(number) @ torch.ones(3, dtype=torch.float64)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return torch.zeros(1)
def write(number):
    log.info("%s", number)
    return torch.ones(1)
def reload(number):
    importlib.reload(computes)
    return torch.tensor([computes.value])
def hand_over(number):
    handed.put((number, operate(number)))
    try:
        other, value = handed.get_nowait()
    except queue.Empty:
        return torch.ones(1)
    return torch.ones(1) * torch.equal(value, operate(other))
def locked(number):
    with lock:
        return operate(number)
def pooled(number):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(operate, number).result()
def traced(number):
    torch.jit.trace(lambda x: x * 2 + 1, piece(number), check_trace=False)
    return operate(number)
def rest(number):
    time.sleep(number % 5 / 1000)
    return torch.ones(1)
def wait(number):
    for thread in threads:
        if thread.ident and thread is not threading.current_thread():
            thread.join(0.005)
    return torch.ones(1)
plain = [operate, operate, backward, fail, rest, wait]
every = [*plain, pooled, traced, compile, map_rows, write, reload, hand_over, locked]
threads, results = [], {}
def work(seed, steps, things=every):
    global total, refused
    numbers, found = random.Random(seed), []
    while len(found) < steps:
        thing, number = numbers.choice(things), numbers.randrange(500)
        while True:
            try:
                total += 1
                found.append((thing.__name__, thing(number)))
                break
            except torch.OutOfMemoryError:
                refused += 1
            except KeyboardInterrupt:
                assert threading.current_thread() is threading.main_thread()
    return found
def run(seed, steps):
    try:
        results[seed] = work(seed, steps)
    except BaseException as error:
        results[seed] = error
def is_equal(one, other):
    if not isinstance(one, list): return False
    return all(a == c and torch.equal(b, d) for (a, b), (c, d) in zip(one, other, strict=True))
def wrong(alone):
    for thread in threads: thread.join(50)
    bad = [thread.name for thread in threads if thread.is_alive()]
    if bad:
        faulthandler.dump_traceback(file=sys.__stderr__)
    for seed, expected in alone.items():
        if seed in results and not is_equal(results[seed], expected):
            bad.append((seed, results[seed] if isinstance(results[seed], BaseException) else "differs"))
    return bad
"""


class RandomExecutor:
    """An executor that grants, withholds, refuses, preempts, stops and evicts as random numbers say.

    Parameters
    ----------
    session
        Whose it is.
    """

    def __init__(self, session: SessionUnderTest) -> None:
        self._session, self.random = session, random.Random()
        #: whether it does more than to grant and restore at once
        self.is_wild = False
        #: whether the user interrupts
        self.interrupts = False
        #: held while it does anything
        self.lock = threading.Lock()
        self._is_wanted = False
        self._since = session.mark
        #: the memory is away, and the executor was asked for it again
        self._is_away = False
        #: it was asked to move the memory away, and has not answered
        self._is_evicting = False
        self._asked_at = 0.0
        self._preempted_at: float | None = None
        self._end = threading.Event()
        session.on_wanted, session.on_withdrawn = self._wanted, self._withdrawn
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _wanted(self, wanted: protocol.DeviceWantedReport) -> None:
        with self.lock:
            self._is_wanted = True
            if not self._is_evicting and (not self.is_wild or self.random.random() < 0.5):
                self._answer()

    def _withdrawn(self) -> None:
        with self.lock:
            self._is_wanted = False
            self._session.say(protocol.WithdrawalSeen())

    def _answer(self) -> None:
        self._is_wanted = False
        if self.is_wild and self.random.random() < 0.1:
            self._session.say(protocol.RefusedGrant(reason="memory", message="no room"))
        else:
            self._session.grant()

    def _run(self) -> None:
        while not self._end.wait(self.random.random() * 0.01):
            with self.lock:
                self._look()
                self._act()

    def _look(self) -> None:
        news, self._since = self._session.heard[self._since :], self._session.mark
        for message in news:
            if isinstance(message, protocol.OffloadedReport | protocol.OffloadDeclinedReport):
                self._is_evicting = False
            if isinstance(message, protocol.OffloadedReport):
                self._is_away, self._is_wanted = True, False
            elif isinstance(message, protocol.RestoredReport):
                self._is_away = False

    def _act(self) -> None:
        session, words, now = self._session, self._session.page.words, time.monotonic()
        if self._is_away:
            if now > self._asked_at + 0.05:
                self._asked_at = now
                session.say(protocol.RestoreCommand())
            return
        if not self.is_wild:
            words[Word.PREEMPT] = 0
            if self._is_wanted and not self._is_evicting:
                self._answer()
            return
        what = self.random.random()
        if self._is_wanted and not self._is_evicting and what > 0.6:
            self._answer()
        elif what < (0.2 if self._is_wanted else 0.02) and not self._is_evicting:
            self._is_evicting = True
            session.say(protocol.OffloadCommand())
        elif 0.2 < what < 0.21:
            os.kill(session.process.pid, signal.SIGSTOP)
            self._end.wait(0.005)
            os.kill(session.process.pid, signal.SIGCONT)
        elif 0.21 < what < 0.35 and self.interrupts:
            session.interrupt()
        if words[Word.TURN] != Turn.HOLDING:
            self._preempted_at = None
        elif words[Word.PREEMPT]:
            if self._preempted_at is not None and now > self._preempted_at + 0.02:
                os.kill(session.process.pid, FORCE_SIGNAL)
        elif what > 0.4:
            self._preempted_at, words[Word.PREEMPT] = now, 1

    def end(self) -> None:
        """Do nothing more."""
        self._end.set()
        self._thread.join()


def play(session: SessionUnderTest, executor: RandomExecutor, seed: int) -> None:
    """Play one round: what threads compute is what they compute alone, and in the end the session is idle."""
    numbers = random.Random(seed)
    interrupts = numbers.random() < 0.5
    things = "plain" if interrupts else "every"  # Python's own locks do not bear interrupts everywhere
    seeds = range(4 * seed, 4 * seed + 4)
    alone = session.run(
        f"faulthandler.dump_traceback_later({PATIENCE - 10}, file=sys.__stderr__)\n"
        f"threads, results = [], {{}}\n"
        f"alone = {{seed: work(seed, {STEPS}) for seed in {list(seeds[:3])}}}\n"
        f"alone[{seeds[3]}] = work({seeds[3]}, {STEPS}, {things})"
    )
    assert alone["status"] == "ok", alone
    since = session.mark
    executor.random, executor.is_wild = numbers, True
    _run(
        session,
        f"threads = [threading.Thread(target=run, args=(seed, {STEPS})) for seed in {list(seeds[:3])}]\n"
        "for thread in threads: thread.start()",
    )
    executor.interrupts = interrupts
    cell = session.run(f"results[{seeds[3]}] = work({seeds[3]}, {STEPS}, {things})")
    with executor.lock:
        executor.interrupts = False
    assert cell["status"] == "ok" or cell["ename"] in ("KeyboardInterrupt", "OutOfMemoryError"), (seed, cell)
    verdict = _run(session, "print(wrong(alone))")
    executor.is_wild = False
    assert verdict == "[]\n", (seed, verdict, session.log())
    session.wait_for(protocol.CellClosedReport, since)
    _wait_until_idle(session, seed)


def _run(session: SessionUnderTest, code: str) -> str:
    """Run a cell that does not compute, again if it was refused its memory; return what it printed."""
    while (reply := session.run(code))["status"] != "ok":
        assert reply["ename"] in ("OutOfMemoryError", "KeyboardInterrupt"), reply
    return str(reply["text"])


def _wait_until_idle(session: SessionUnderTest, seed: int) -> None:
    words, mark = session.page.words, session.mark
    wait_until(
        lambda: words[Word.TURN] == Turn.IDLE and not words[Word.THREADS],
        lambda: (seed, words[Word.TURN], words[Word.THREADS], session.kinds(mark - 20)),
    )


@pytest.mark.heavy
def test_random_threads() -> None:
    until = time.monotonic() + SECONDS
    with SessionUnderTest() as session:
        begun = session.run(_PROGRAM)
        assert begun["status"] == "ok", begun
        executor = RandomExecutor(session)
        try:
            for seed in itertools.count(SEED):
                play(session, executor, seed)
                if time.monotonic() >= until and seed >= SEED + ROUNDS - 1:
                    break
        except BaseException as error:
            error.add_note(f"FUZZ_SEED={seed}\n{session.log()}")  # where it stands, if it hangs
            raise
        finally:
            executor.end()
