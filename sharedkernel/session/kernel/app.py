"""A session's process from its fork to its end.

It starts as a *spare*: a whole kernel that serves nobody yet, connected to its executor. The executor then assigns it
to a user's session, once. The recipe for forking a kernel is in :mod:`sharedkernel.executor.supervision.warm_parent`;
this module is what the child does after that.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy
import torch
from ipykernel.kernelapp import IPKernelApp
from tornado.ioloop import IOLoop
from tornado.platform.asyncio import BaseAsyncIOLoop

from sharedkernel import protocol
from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.errors import ProtocolError, SessionNotFound
from sharedkernel.ipc import current_session
from sharedkernel.ipc.fd_client import DescriptorClient
from sharedkernel.ipc.shared_page import Page
from sharedkernel.jupyter.names import HOST_VARIABLE
from sharedkernel.paths import log_name
from sharedkernel.session import likeness
from sharedkernel.session.channels.backpressure import SessionApp, out_of_turn, pace, refuse_long
from sharedkernel.session.channels.direct_sends import Replies, replacing_surrogates
from sharedkernel.session.channels.message_log import MessageLog
from sharedkernel.session.connection import Link
from sharedkernel.session.device_parts import make_parts
from sharedkernel.session.gate import onlookers
from sharedkernel.session.gate.gate import Gate
from sharedkernel.session.gate.iteration_boundaries import Boundaries
from sharedkernel.session.gate.standing import GateParts
from sharedkernel.session.kernel import own_log, packages, user_account
from sharedkernel.session.kernel.activity import BackgroundActivity
from sharedkernel.session.kernel.kernel import GatedKernel
from sharedkernel.session.kernel.restart import Launch, asked_variables, start_afresh
from sharedkernel.session.memory import reclaimable
from sharedkernel.session.memory.growth import Growth
from sharedkernel.session.memory.host_meter import set_up_heap
from sharedkernel.session.memory.lease_check import ErrorTranslator, LeaseCheck
from sharedkernel.session.memory.reservations import Reservations
from sharedkernel.session.offload.residency import Residency
from sharedkernel.session.progress.progress import Forecast, Progress
from sharedkernel.session.wait_display import WaitDisplay
from sharedkernel.system import processes

log = logging.getLogger(__name__)

#: seconds for which a spare asks executors that do not take it; then it ends
_REFUSED_PATIENCE = 30.0

#: told to users with an account of their own, whose processes have sockets where only the executor's may make them
_NO_VARIABLES = "Variables by KERNEL_ENV_ are not set here: sessions run under their users' own accounts."

#: the same of packages
_NO_PACKAGES = "Your own {} is not used: sessions run under their users' own accounts, and have the shared one."

#: told to them, too, since debugpy lets everybody in who can connect
_NO_DEBUGGER = (
    "The debugger is off: it would listen on a port to which other users could connect. Use %debug or breakpoint()."
)

#: this process's boundaries, for :func:`sharedkernel.iterations`; None in every other process
boundaries: Boundaries | None = None


class SessionRuntime:
    """Wires one kernel, its gate and its link.

    Parameters
    ----------
    launch
        What this process was started with.
    app
        The kernel application, initialised.
    assign
        The session to serve, where this process was assigned to it before it started afresh.
    """

    def __init__(self, launch: Launch, app: IPKernelApp, *, assign: protocol.Assign | None) -> None:
        global boundaries
        self._launch = launch
        self._assigned = False
        #: what to serve once the executor has heard that this process is there; None: it says so itself
        self._awaited = assign
        self._is_afresh = assign is not None
        #: None: there is no user yet
        self._activity: BackgroundActivity | None = None
        #: since when executors have refused this spare; None: the last one took it
        self._refused_since: float | None = None
        #: the sentence with which it was refused last
        self._refusal: str | None = None
        self._app = app
        self._kernel: GatedKernel = self._app.kernel
        self._kernel.replies = Replies(self._kernel)  # first, since the others wrap what it sends
        self._kernel.message_log = MessageLog()
        self._kernel.message_log.attend(self._app)
        pace(self._app)
        self._kernel.notice = self._notice = WaitDisplay(self._kernel, out_of_turn)
        self._notice.attend(self._app)
        refuse_long(self._app)
        self._kernel.replies.begin()
        device_kind, mode = launch.device_kind, DeviceMemoryMode(launch.memory_mode)
        page = Page(launch.page_descriptor)
        self._channel = DescriptorClient(launch.executor_socket)
        device = make_parts(device_kind, page, mode, self._channel)
        self._meter, self._lanes = device.meter, device.lanes
        self._kernel.lease = self._lease = LeaseCheck()
        self._forecast = Forecast(Progress())
        self._link = Link(launch.executor_socket)
        parts = GateParts(
            page=page,
            meter=self._meter,
            link=self._link,
            notice=self._notice,
            residency=Residency(device.mover, self._meter),
            growth=Growth(self._meter, self._lease),
            forecast=self._forecast,
        )
        translator = ErrorTranslator(
            self._lease,
            used=lambda: self._gate.used_bytes,
            describe_results=lambda: reclaimable.describe_results(self._kernel.shell.user_ns),
            on_failure=lambda error: self._gate.allocation_failed(error),
            has_gpu=device_kind == "cuda",
        )
        self._gate = Gate(
            parts,
            check_memory=self._lease.check,
            why_busy=self._kernel.why_busy,
            concerns=device.concerns,
            lanes=self._lanes,
            run_ahead=device.run_ahead,
            translate=translator.translate,
        )
        boundaries = self._boundaries = Boundaries(self._gate, self._meter, self._forecast.progress)
        boundaries.install()
        onlookers.install(self._gate)
        self._forecast.progress.install()
        self._kernel.attach(self._gate, translator)
        if device_kind == "host":
            self._kernel.reservations = Reservations(self._meter, self._link)
            self._kernel.reservations.install()
        # The one that the application will run; its own attribute comes with start(), which an Assign may overtake.
        self._loop = IOLoop.current()

    def run(self) -> None:
        """Serve until the kernel is shut down."""
        self._meter.start(self._boundaries.clock_ticked, self._gate.watch_memory)
        assert isinstance(self._loop, BaseAsyncIOLoop)
        self._gate.enforce(self._boundaries, self._loop.asyncio_loop)
        self._link.start(self._hello, self._on_message)
        self._app.start()
        self._gate.standing.disable()
        self._link.close()

    def _end(self) -> None:
        self._gate.standing.disable()
        processes.end_process(0)

    def _hello(self) -> protocol.SessionHello:
        self._forecast.executor_changed()
        info = self._app.get_connection_info()
        return protocol.SessionHello(
            version=protocol.PROTOCOL_VERSION,
            process=self._launch.process,
            connection={**info, "key": self._app.session.key.decode()},
            memory=self._meter.memory,
            data_bytes=self._meter.data_bytes(),
            **self._gate.standing.resume_state(),
        )

    def _on_message(self, message: Any) -> None:
        if isinstance(message, protocol.Assign):
            self._loop.add_callback(self._assign, message)
        elif isinstance(message, protocol.Allowance):
            self._lease.allowance = message
            self._meter.allow(message)
        elif isinstance(message, protocol.Notice):
            if not current_session.on_answer(message) and message.text:
                self._kernel.show_sentence(message.text)
        elif isinstance(message, protocol.View | protocol.Welcome):
            self._refused_since = self._refusal = None
            if isinstance(message, protocol.Welcome) and self._awaited is not None:
                self._loop.add_callback(self._assign, self._awaited)
                self._awaited = None
            current_session.on_message(message)
        elif isinstance(message, protocol.OffloadCommand):
            if self._gate.eviction.request():
                self._loop.add_callback(self._gate.eviction.offload)
        elif isinstance(message, protocol.AskActivity):
            found = () if self._activity is None else tuple(self._activity.found())
            self._link.send(protocol.ActivityReport(found=found))
        elif isinstance(message, protocol.EndCommand):
            if self._kernel.why_busy() is not None:
                os.kill(os.getpid(), signal.SIGTERM)
            self._loop.add_callback(self._end)
        elif isinstance(message, protocol.Failed):
            self._meet_refusal(message, time.monotonic())
        else:
            self._gate.on_message(message)

    def _meet_refusal(self, failed: protocol.Failed, now: float) -> None:
        """End, if there is nothing to lose; a session that serves somebody asks on, for as long as it takes.

        An executor may be unable to look at it, may speak another version of the protocol, or may have lost its
        records: none of that is worth its user's variables.
        """
        if failed.message != self._refusal:  # once, and not each second for as long as it takes
            self._refusal = failed.message
            log.error("the executor refused this session: %s", failed.message)
        if self._assigned:
            return
        self._refused_since = self._refused_since or now
        is_unknown = failed.reason in (SessionNotFound.reason, ProtocolError.reason)
        if is_unknown or now - self._refused_since > _REFUSED_PATIENCE:
            os._exit(1)  # a spare that its executor does not know will never serve anybody

    def _assign(self, message: protocol.Assign) -> None:
        try:
            self._serve(message, note=self._start_afresh_if_asked(message))
            if self._is_afresh:
                packages.has_started(packages.overlay_site_packages())
        except Exception:
            log.exception("cannot serve session %s", message.session)
            os._exit(1)  # the gateway is notified of the end, and would wait forever otherwise

    def _start_afresh_if_asked(self, message: protocol.Assign) -> str | None:
        """Start afresh for variables, or for packages of the user's; else return why not, if they were wanted."""
        asks, account = bool(asked_variables(message.env)), message.account
        if account is not None and account.uid is not None:
            return _NO_VARIABLES if asks else None
        own = packages.overlay_site_packages(message.environment, home=None if account is None else account.home)
        others = packages.other_versions(own)
        failing = packages.why_failing(own) if others else None
        unfit = packages.unfit(own) if others and failing is None else {}
        if failing is None and not unfit.keys() >= set(others) and not self._is_afresh:
            packages.starts_with(own)
            start_afresh(self._launch, message, str(own), unfit)
        if asks and not self._is_afresh:
            start_afresh(self._launch, message)
        return failing or "\n".join(dict.fromkeys(unfit[name] for name in others if name in unfit)) or None

    def _serve(self, message: protocol.Assign, *, note: str | None) -> None:
        self._assigned = True
        if message.account is not None:
            self._become(message.account)
        # Where users have accounts of their own, the name of a notebook is nobody else's business.
        shown = None if self._launch.isolation == "users" else message.notebook
        processes.show_title(processes.session_title(message.user, shown), f"sk {message.user}")
        os.environ.update(message.env)
        # JAX else takes three quarters of a GPU at its first use, and sessions are ended for less
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self._notice.host = message.env.get(HOST_VARIABLE, "")
        self._app.iopub_thread.serve_children(self._children_socket(message.account))
        place = user_account.enter_directory(message.cwd, message.notebook, own_home=message.account is not None)
        likeness.start_here(self._kernel.shell, message.notebook)
        packages.use_environment(message.environment)
        unused = None
        if message.account is not None and message.account.uid is not None:  # as for variables, it cannot start afresh
            others = packages.other_versions(packages.overlay_site_packages())
            unused = _NO_PACKAGES.format(", ".join(others)) if others else None
        self._kernel.greeting = "\n".join(text for text in (place, message.notice, note, unused) if text) or None
        current_session.connect(self._link, message.session, self._channel)
        if self._lanes is not None and message.shares_lanes:
            self._lanes.enable(check_lanes=message.check_lanes)
        self._meter.start_over()
        self._activity = BackgroundActivity()
        self._link.send(protocol.Assigned(session=message.session))
        log.info("serves session %s of %s", message.session, message.user)

    def _children_socket(self, account: protocol.Account | None) -> str:
        """Return the path at which forked children find this process: nobody but its user may pass to it."""
        if account is not None and account.runtime_directory is not None:
            return os.path.join(account.runtime_directory, str(os.getpid()))
        return f"{os.path.splitext(self._launch.connection_file)[0]}-out"

    def _become(self, who: protocol.Account) -> None:
        try:
            user_account.enter(who)
            if who.runtime_directory is not None:
                path = Path(who.runtime_directory, log_name(self._launch.process))
                own_log.move(self._launch.log_descriptor, path)
        except (OSError, ValueError):
            log.exception("cannot become %s", who.name)
            os._exit(1)  # rather than serve a user with somebody else's rights
        user_account.open_profile(self._app)


def _make_app(launch: Launch, log_stream: TextIO) -> IPKernelApp:
    app: IPKernelApp = SessionApp.instance(
        kernel_class=GatedKernel,
        outstream_class="sharedkernel.session.channels.backpressure.PacedStream",
        transport="ipc",
        connection_file=launch.connection_file,
        # Without a parent to watch, the kernel outlives whatever forked it.
        parent_handle=0,
    )
    if launch.isolation != "none":  # it is not known yet whose history it would be
        app.config.HistoryManager.enabled = False
    app.initialize(["-f", launch.connection_file])
    # jupyter_client prefers orjson where a library has brought it, and that crashes where it gets no memory (3.13.0)
    app.session.packer = app.session.unpacker = "json"
    app.session.serialize = replacing_surrogates(app.session.serialize)
    if launch.isolation == "users":
        app.kernel.why_no_debugger = _NO_DEBUGGER
    own_log.take_over(logging.getLogger(type(app).__name__), log_stream, int(str(app.log_level)))
    return app


#: random generators that imported modules keep for themselves, as sympy does
_generators: list[random.Random | numpy.random.RandomState] = []


def _reseed() -> None:
    """Give this process random numbers and secrets of its own: forked siblings would all have the same."""
    # Who has it may run code in another's managers. Torch has imported the module; nothing here needs more of it.
    sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    torch.default_generator.seed()  # torch.seed() would look up who called it, for each kind of device
    numpy.random.seed()
    random.seed()
    for generator in _generators:
        generator.seed()


def prepare() -> None:
    """Look at all that was imported, once: sessions that are forked then share it for longer."""
    _generators.extend(
        found for found in gc.get_objects() if issubclass(type(found), random.Random | numpy.random.RandomState)
    )
    likeness.note_modules()
    own_log.prepare()


def run(launch: Launch, *, assign: protocol.Assign | None = None) -> None:
    """Be a session's process (called in the forked child, or afresh; returns when the kernel was shut down)."""
    processes.adopt_orphans()
    processes.prepare_titles()
    if launch.isolation == "users":  # now, since each holds for the threads to come only
        processes.gain_no_privileges()
        processes.leave_keyring()
        os.umask(0o007)  # the gateway's group may connect to the kernel's sockets; users never come to where they are
    # A descriptor of its own: what arrives at the original one, the kernel shows to its user.
    log_stream = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
    launch = replace(launch, log_descriptor=log_stream.fileno())
    own_log.set_up(log_stream)
    faulthandler.enable(log_stream)  # where each thread was, should a library end the process by a signal
    likeness.take_arguments(launch.connection_file)
    _reseed()
    set_up_heap()
    SessionRuntime(launch, _make_app(launch, log_stream), assign=assign).run()
