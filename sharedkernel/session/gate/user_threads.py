"""The threads of a session besides its main one: what each does with the device passes the gate as well.

A thread has a dispatch mode of its own from its start, which stays in: no signal reaches another thread than the main
one, so none could take it out between two bytecodes. Its operations cost what the mode costs each time.

A thread that runs messages of a subshell is in the sections of these. Any other thread opens a section with its first
operation. That ends with the thread, or once it has used the device for some time no more, whatever cells began or
ended meanwhile. Threads that only serve the kernel, or a library that is known to compute nothing in them, are left
alone.

Of :mod:`threading`, the private method with which each of its threads begins is replaced; it is the same from Python
3.11 to 3.14 (`tests/session/gate/test_user_threads.py` fails where it is not).
"""

from __future__ import annotations

import _thread
import functools
import threading
import time
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

from sharedkernel.ipc.shared_page import Word
from sharedkernel.session.gate.dispatch_mode import DeviceMode
from sharedkernel.session.gate.passage import Passage
from sharedkernel.session.memory.host_meter import unlimited_rlimit
from sharedkernel.session.offload.idleness import serves_the_kernel

#: seconds without an operation after which a thread's section ends, and between two looks
IDLE_AFTER, _LOOK_INTERVAL = 2.0, 0.5


class UserThread:
    """One thread, as its gate knows it.

    Parameters
    ----------
    make_mode
        Makes its dispatch mode.
    """

    __slots__ = ("has_section", "ident", "mode", "num_looks", "num_sections", "used_at")

    def __init__(self, make_mode: Callable[[UserThread], DeviceMode]) -> None:
        self.ident = threading.get_ident()
        #: sections of messages that it runs
        self.num_sections = 0
        #: a section that one of its operations has opened is open
        self.has_section = False
        #: things that look at dispatch in it (:mod:`.onlookers`), during which its mode is out
        self.num_looks = 0
        #: when it used the device last (monotonic)
        self.used_at = 0.0
        self.mode = make_mode(self)

    def look_began(self) -> None:
        """Keep its mode out (in this thread, which is inside)."""
        self.num_looks += 1
        self.mode.take_out()

    def look_ended(self) -> None:
        """Put its mode in again, unless something else looks on (in this thread)."""
        self.num_looks -= 1
        if not self.num_looks:
            self.mode.put_in()

    @property
    def name(self) -> str:
        """Its name, where :mod:`threading` knows it."""
        known = threading._active.get(self.ident)  # type: ignore[attr-defined]
        return str(self.ident) if known is None else str(known.name)

    def uses_device(self) -> bool:
        """Record that one of its operations begins; return whether it belongs to a section."""
        self.used_at = time.monotonic()
        return self.is_in_section

    @property
    def is_in_section(self) -> bool:
        """Whether its operations belong to a section."""
        return self.has_section or self.num_sections > 0


class UserThreads:
    """The threads of one session that pass its gate.

    Parameters
    ----------
    words
        Of the session's page, which says how many compute.
    passage
        Says who is inside an operation.
    open_section, close_section
        Called in any thread.
    """

    def __init__(
        self,
        words: memoryview,
        passage: Passage,
        *,
        open_section: Callable[[], None],
        close_section: Callable[[], None],
    ) -> None:
        self._words = words
        self._passage = passage
        self._open_section = open_section
        self._close_section = close_section
        self._local = threading.local()
        #: all of them, by number
        self._all: dict[int, UserThread] = {}
        self._ending = threading.Lock()
        self._any = threading.Semaphore(0)
        self._watcher: threading.Thread | None = None

    @property
    def current(self) -> UserThread | None:
        """The calling thread, if it is one of these."""
        return getattr(self._local, "thread", None)

    def guard(self, make_mode: Callable[[UserThread], DeviceMode]) -> UserThread:
        """Let every operation of the calling thread pass the gate from now on."""
        thread = self.current
        if thread is None:
            thread = self._local.thread = self._all[threading.get_ident()] = UserThread(make_mode)
            thread.mode.put_in()
        return thread

    def install(self, make_mode: Callable[[UserThread], DeviceMode]) -> None:
        """Guard each thread that Python code starts from now on, for the life of the process."""
        original, start = threading.Thread._bootstrap_inner, _thread.start_new_thread  # type: ignore[attr-defined]

        @functools.wraps(original)
        def begin(thread: threading.Thread) -> None:
            if serves_the_kernel(thread):
                original(thread)
            else:
                self._run(make_mode, original, thread)

        @functools.wraps(start)
        def start_new_thread(function: Callable[..., object], *arguments: Any) -> int:
            if not isinstance(function, BuiltinFunctionType):  # what C does needs no memory for a frame
                function = functools.partial(self._run, make_mode, function)
            return start(function, *arguments)

        threading.Thread._bootstrap_inner = begin  # type: ignore[attr-defined]
        _thread.start_new_thread = _thread.start_new = start_new_thread

    def _run(
        self, make_mode: Callable[[UserThread], DeviceMode], function: Callable[..., object], *args: Any, **kwargs: Any
    ) -> None:
        thread = self.guard(make_mode)
        try:
            function(*args, **kwargs)
        finally:
            self._passage.leave()  # what looks at dispatch in it may not have ended
            self._end_section(thread)
            self._all.pop(thread.ident, None)

    # --- sections of threads ------------------------------------------------------------------------------------------

    @property
    def in_sections(self) -> list[UserThread]:
        """The threads whose operations belong to sections that are open."""
        return [thread for thread in list(self._all.values()) if thread.is_in_section]

    def open_section(self, thread: UserThread) -> None:
        """Open a section for *thread*, an operation of which needs the device."""
        with self._ending:
            if thread.has_section:  # it was being ended, and goes on
                return
        self._open_section()
        thread.used_at = time.monotonic()
        with self._ending:
            thread.has_section = True
            self._count()
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="sharedkernel-threads", daemon=True)
            try:
                with unlimited_rlimit():
                    self._watcher.start()
            except RuntimeError:  # no more threads: the section ends with its thread
                self._watcher = None
        self._any.release()

    def _watch(self) -> None:
        while True:
            own = [thread for thread in self.in_sections if thread.has_section]
            if not own:
                self._any.acquire()
                continue
            time.sleep(_LOOK_INTERVAL)
            for thread in own:
                if time.monotonic() >= thread.used_at + IDLE_AFTER:
                    self._end_section(thread)

    def _end_section(self, thread: UserThread) -> None:
        with self._ending:
            had_one, thread.has_section = thread.has_section, False
            if had_one and self._passage.is_at(thread):  # it goes on
                thread.has_section = True
            elif had_one:
                self._count()
                self._close_section()

    def _count(self) -> None:
        self._words[Word.THREADS] = sum(thread.has_section for thread in list(self._all.values()))

    def forget_in_child(self) -> None:
        """Forget the threads of the process that this one was forked from."""
        for thread in self._all.values():  # the one that goes on here must not count itself out in the page
            thread.has_section = False
        self._all.clear()
        self._ending = threading.Lock()
