"""The meter of a session's memory on a GPU: torch's own figures, and NVML's for the rest.

Torch counts every byte of its tensors, and their peak, itself; so nothing has to be sampled but the figure that is on
view. *Persistent* and *ephemeral* are as on the host: what is allocated at a boundary, and the peak beyond it.
*Framework* is what the process holds besides torch's allocator: the context, libraries' code, and whatever other
libraries allocate. NVML tells it where it can tell processes apart; elsewhere it is what the device lacked more after
the context was made than before, which others may disturb, and where even that makes no sense a usual figure.

The session's allowance holds by a limit on torch's allocator. Before the grant is given back the device is waited for,
so that nothing of this session runs in another's turn. Where lanes' bytes are not shared, what torch keeps for the next
tensors is freed then as well: the others were promised it.

Where they are shared (:meth:`CudaMeter.count_pages`), it is pages that are charged: those private to the session, and
what torch has from elsewhere (for CUDA graphs, and pools of the user's). Persistent is what tensors have of them, as
everywhere; the rest, torch's *slack*, is framework memory. The limit is where the pages come from.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from sharedkernel.device_memory.layout import PageBytes, lane_for
from sharedkernel.errors import SharedKernelError
from sharedkernel.ipc.shared_page import Page, Word
from sharedkernel.protocol import Allowance, Memory
from sharedkernel.session.memory.meters import CLOCK_INTERVAL, SETTLE_INTERVAL, Meter
from sharedkernel.session.memory.torch_cuda import AllocatorBytes, TorchCuda
from sharedkernel.system.nvml import Gpu

log = logging.getLogger(__name__)

#: a context and libraries' code, where nothing better is known
USUAL_CONTEXT_BYTES = 600 << 20
#: what a difference of the device's free bytes must be between to pass for a context
_PLAUSIBLE_CONTEXT = range(64 << 20, 2 << 30)
#: kept bytes that are not worth freeing when the grant is given back
_WORTH_FREEING_BYTES = 32 << 20


def find_gpu() -> Gpu | None:
    """Return this session's GPU as NVML sees it; None where NVML cannot be used."""
    try:
        return Gpu(os.environ.get("CUDA_VISIBLE_DEVICES", "cuda:0"))
    except SharedKernelError as error:
        log.warning("framework memory is estimated: %s", error)
        return None


class Pages(Protocol):
    """The source of torch's shared memory: :class:`sharedkernel.session.lanes.lane_turns.LaneTurns`."""

    #: bytes that may be private to the session; None: any number
    limit_bytes: int | None

    @property
    def has_turn(self) -> bool:
        """Whether iterations use a lane now; if not, they use private memory."""

    def look(self) -> PageBytes:
        """Return the figures of now."""


class CudaMeter(Meter):
    """Measures one session on a GPU.

    Parameters
    ----------
    page
        Shown there: persistent, live, ephemeral, framework and reserved bytes.
    cuda
        Torch's allocator.
    find_device
        Opens NVML, at CUDA's first use; None where that fails.
    """

    def __init__(self, page: Page, cuda: TorchCuda, find_device: Callable[[], Gpu | None] = find_gpu) -> None:
        super().__init__(page)
        self._pages: Pages | None = None
        self._words = page.words
        #: torch's allocator
        self.cuda = cuda
        self._find_device = find_device
        self._device: Gpu | None = None
        self._allowance: Allowance | None = None
        #: bytes of pages that no tensor has, when that was measured last
        self._slack = 0
        #: what the context took when it was made; framework memory is never less
        self._context = 0
        #: it was made at first use, or NVML has listed this process since
        self._has_context = True
        self._holding = threading.Event()

    def start(
        self, on_clock: Callable[[], None] = lambda: None, on_sample: Callable[[int], None] = lambda used: None
    ) -> None:
        """Start to measure; see :class:`.Meter`."""
        leave_garbage_to_parent()
        self.cuda.install(self._on_first_use)
        super().start(on_clock, on_sample)

    def start_over(self) -> None:
        """Start over for the session's user, with nothing on the device yet."""
        self._figures.set_framework(self._figures.framework)

    @property
    def memory(self) -> Memory:
        """The figures last measured."""
        memory = self._figures.memory
        if self._pages is None:
            return memory
        lane = None if memory.ephemeral is None else lane_for(memory.ephemeral)
        return msgspec.structs.replace(memory, ephemeral=lane, framework=memory.framework + self._slack)

    def count_pages(self, pages: Pages) -> None:
        """Take what is charged from *pages* from now on, and let them keep to the limit."""
        self._pages = pages
        self._bind()

    @property
    def used_bytes(self) -> int:
        """Bytes in tensors now."""
        away = 0 if self._pages is None else self._pages.look().away
        return max(0, self.cuda.look().allocated - away)

    def _weigh(self, now: AllocatorBytes) -> tuple[int, int]:
        """Return the bytes that are this session's own, and all bytes of the device that torch has."""
        if self._pages is None:
            return now.allocated, now.reserved
        pages = self._pages.look()
        elsewhere = max(0, now.reserved - pages.held)
        return pages.private + elsewhere, pages.private + elsewhere + pages.lane

    def _without_slack(self, now: AllocatorBytes, charged: int) -> int:
        """Return what tensors have of *charged* bytes, and count the rest as slack."""
        away = 0 if self._pages is None else self._pages.look().away
        self._slack = max(0, charged - max(0, now.allocated - away))
        if self._pages is not None and self._pages.limit_bytes is not None and self._allowance is not None:
            # what an iteration left is not always of use to the next one, which may have as much beside it
            self._pages.limit_bytes = max(self._pages.limit_bytes, self._allowance.limit_bytes + self._slack)
        return charged - self._slack

    def allow(self, allowance: Allowance) -> None:
        """Apply the limits of the session's memory (any thread).

        A larger limit holds at once, since memory may come back before there is a grant; a smaller one from the next
        grant on, so that it breaks no iteration that was granted more.
        """
        before, self._allowance = self._allowance, allowance
        if before is not None and allowance.limit_bytes > before.limit_bytes:
            self._bind()

    def _bind(self, *, is_first_use: bool = False) -> None:
        """Let torch hold what is allowed, or take so many pages."""
        if self._allowance is None:
            return
        if self._pages is None:
            self.cuda.limit(self._allowance.limit_bytes, is_first_use=is_first_use)
        else:
            self.cuda.limit(None)
            self._pages.limit_bytes = self._allowance.limit_bytes + self._slack

    # --- grants -------------------------------------------------------------------------------------------------------

    def device_acquired(self) -> None:
        """Make the context, if there is none yet: the grant has room for it."""
        self.cuda.begin_use()

    def grant_began(self) -> None:
        """Start a new peak, within the present allowance."""
        self._bind()
        self.cuda.take()
        self._figures.grant_began()
        self._show_now()
        self._holding.set()

    def grant_ended(self, *, at_boundary: bool) -> int:
        """Wait for the device; return the live bytes beyond persistent, which at a boundary are none.

        Only at a boundary does what is in use count as persistent: in the middle of an iteration most of it is not.
        The grant ends even if what ran on the device failed: the user's next operation will say so.
        """
        self._holding.clear()
        with contextlib.suppress(RuntimeError):
            self.cuda.synchronize()
            self._give_back()
        now = self.cuda.take()
        own, held = self._weigh(now)
        self._words[Word.RESERVED] = held
        if at_boundary:
            self._split(now, own)
            return 0
        return self._figures.interrupted(now.allocated, peak=now.peak, charged=max(0, own - self._slack))

    def _give_back(self) -> None:
        """Free what torch keeps, if it is much and the memory comes by no page; the others were promised it."""
        now = self.cuda.look()
        if self._pages is None and now.reserved - now.allocated >= _WORTH_FREEING_BYTES:
            with contextlib.suppress(RuntimeError):
                self.cuda.give_back()

    def boundary_measured(self) -> None:
        """Measure at a boundary, with the grant kept."""
        now = self.cuda.take()
        own, held = self._weigh(now)
        if self._pages is not None and not self._pages.has_turn:
            # What its iterations take is private as well, but charged as the lane that it has not got.
            own = min(own, now.allocated)
        self._words[Word.RESERVED] = held
        self._split(now, own)

    def _split(self, now: AllocatorBytes, charged: int) -> None:
        """Take what is charged at a boundary for persistent, and the peak beyond what is in use for ephemeral."""
        charged = self._without_slack(now, charged)
        known = self._figures.known - self._figures.settled
        if self._figures.iteration_ended(now.allocated, peak=now.peak, charged=charged) > known * 17 // 16:
            self._quiet_looks = 0
        self._quiet_looks += 1

    def _in_use(self) -> tuple[int, int | None]:
        now = self.cuda.look()
        return now.allocated, max(0, self._weigh(now)[0] - self._slack)

    def _at_rest(self) -> tuple[int, int | None]:
        now = self.cuda.look()
        own, self._words[Word.RESERVED] = self._weigh(now)
        return now.allocated, self._without_slack(now, own)

    def section_ended(self) -> None:
        """Measure at the end of a section, when everything in use is persistent; what it has freed goes back."""
        self._give_back()
        used, charged = self._at_rest()
        self._figures.section_ended(used, charged=charged)

    def _show_now(self) -> AllocatorBytes:
        """Show what is live now."""
        stretch = self._figures.stretch
        now = self.cuda.look()
        held = self._weigh(now)[1]
        if self._figures.sampled(stretch, now.allocated):
            self._words[Word.RESERVED] = held
        return now

    # --- framework memory ---------------------------------------------------------------------------------------------

    def _on_first_use(self) -> None:
        """Measure what a context takes: this is called where torch would make it next, and must not fail."""
        try:
            self._device = self._find_device()
            before = None if self._device is None else self._device.sample().free_bytes
            after = self.cuda.free_bytes()  # makes the context
            lacking = 0 if before is None else before - after
            self._context = lacking if lacking in _PLAUSIBLE_CONTEXT else USUAL_CONTEXT_BYTES
            self._bind(is_first_use=True)  # the operation that makes the context may ask for too much already
        except Exception:
            # Whatever it is, the user's own operation will meet it, and say it better.
            log.exception("framework memory could not be measured")
            self._context = USUAL_CONTEXT_BYTES
            self._has_context = False
        self._figures.set_framework(self._context)
        self._measure_framework()

    def _measure_framework(self) -> None:
        """Take what NVML says this process holds beyond torch's allocator, where it says anything of it."""
        self._is_unsettled = False
        if self._device is None:
            return
        with contextlib.suppress(SharedKernelError):
            processes = self._device.sample().processes
            own = None if processes is None else processes.get(os.getpid())
            if own is None and processes is not None and not self._has_context:
                # Nothing is held where there was no room for a context; a later operation may still make it.
                self._figures.set_framework(0)
            if own is not None:
                self._has_context = True
                # Whether NVML counts memory that sessions share for each of them is not known; too much is safe.
                beyond = own - self._weigh(self.cuda.look())[1]
                self._figures.set_framework(max(beyond, min(self._context, own)))

    def _watch(self, on_clock: Callable[[], None], on_sample: Callable[[int], None]) -> None:
        """Tick while a grant is held, and show what is live then; measure framework memory once nothing runs."""
        idle = threading.Event()
        while True:
            if not self._holding.wait(SETTLE_INTERVAL if self._is_unsettled or self._figures.has_live else None):
                if self._figures.has_live:  # plain Python may free what an interrupted iteration has
                    self._show_now()
                if self._is_unsettled:
                    self._measure_framework()
                continue
            self._is_unsettled = True
            idle.wait(CLOCK_INTERVAL)
            if self._holding.is_set():
                on_clock()
                on_sample(self._show_now().allocated)


def leave_garbage_to_parent() -> None:
    """Let no child that is forked from now on collect what was made before the fork.

    CUDA does not work in a forked child, such as a worker of a DataLoader: what torch frees there by destructors that
    may not fail ends it. Garbage in cycles, such as what a traceback refers to, is freed by whichever process collects
    it first. A child shares that memory with its parent until one of them writes to it, so it does not need more.
    """
    was_enabled = False

    def before() -> None:
        nonlocal was_enabled
        was_enabled = gc.isenabled()
        gc.disable()  # other handlers run in the child before this one

    def after_in_parent() -> None:
        if was_enabled:
            gc.enable()

    def after_in_child() -> None:
        gc.freeze()
        after_in_parent()

    os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)
