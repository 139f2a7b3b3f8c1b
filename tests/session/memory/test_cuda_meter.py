"""The GPU's meter against a stand-in for torch's CUDA functions, and NVML's."""

from __future__ import annotations

import os
import threading

import pytest

from sharedkernel.device_memory.layout import PageBytes
from sharedkernel.ipc.shared_page import Page, Word
from sharedkernel.protocol import Allowance, Memory
from sharedkernel.session.memory.cuda_meter import USUAL_CONTEXT_BYTES, CudaMeter
from sharedkernel.session.memory.torch_cuda import TorchCuda
from sharedkernel.system.nvml import Gpu, NvmlUnavailable
from tests.fake_nvml import FakeGpu, FakeNvml
from tests.session.memory.fake_torch_cuda import GIB, FakeTorch

MIB = 1 << 20


class Session:
    """A meter on a stand-in for torch and NVML."""

    def __init__(self, *, host_pids: bool = True, nvml: bool = True) -> None:
        self.torch = FakeTorch()
        self.gpu = FakeGpu(uuid="GPU-1", total=self.torch.total, reserved=0)
        self.page = Page.create("test")  # never closed: the clock's thread holds its words for life
        self.nvml_is_asked = False

        def find() -> Gpu | None:
            self.nvml_is_asked = True
            return Gpu("GPU-1", library=FakeNvml(self.gpu), host_pids=host_pids) if nvml else None

        self.cuda = TorchCuda(self.torch)
        self.meter = CudaMeter(self.page, self.cuda, find)
        self.meter.start()

    def use(self) -> None:
        """Run a first operation on the device."""
        self.meter.device_acquired()

    def allow(self, limit_bytes: int) -> None:
        self.meter.allow(
            Allowance(limit_bytes=limit_bytes, quota_bytes=8 * GIB, others_bytes=0, capacity_bytes=100 * GIB)
        )

    def word(self, word: Word) -> int:
        return self.page.words[word]


class FakePages:
    """Memory that comes by page, with the figures a test wants."""

    def __init__(self, *, has_turn: bool = False, **figures: int) -> None:
        self.limit_bytes: int | None = None
        self.has_turn = has_turn
        self.bytes = PageBytes(**figures)

    def look(self) -> PageBytes:
        return self.bytes


@pytest.fixture
def session() -> Session:
    session = Session()
    session.use()
    return session


def test_before_cuda_is_used_nothing_is_asked_of_it() -> None:
    """Every figure is 0, and neither a context nor NVML is needed for it: a plain Python notebook takes nothing."""
    session = Session()
    meter = session.meter
    session.allow(GIB)
    meter.grant_began()
    meter.boundary_measured()
    assert meter.grant_ended(at_boundary=True) == 0
    meter.measure_idle()
    assert meter.memory == Memory(persistent=0, ephemeral=0, framework=0)
    assert not session.nvml_is_asked


def test_a_thread_that_passes_no_gate_is_measured_from_its_first_use_on() -> None:
    """It has no grant that it could wait for."""
    session = Session()
    thread = threading.Thread(target=session.torch.use)
    thread.start()
    thread.join()
    assert session.meter.memory.framework == session.torch.context


def test_what_is_freed_without_a_grant_lowers_persistent_memory(session: Session) -> None:
    """What was added meanwhile does not raise it: an iteration may have it in its middle."""
    torch, meter = session.torch, session.meter
    torch.allocate(4 * GIB)
    meter.measure_idle()
    torch.free(3 * GIB)
    meter.measure_freed()
    assert (meter.memory.persistent, session.word(Word.PERSISTENT)) == (GIB, GIB)
    torch.allocate(2 * GIB)
    meter.measure_freed()
    assert meter.memory.persistent == GIB


def test_the_device_is_waited_for_before_the_grant_goes(session: Session) -> None:
    """Nothing of this session runs in another's turn, and what torch keeps for later is free for it."""
    torch, meter = session.torch, session.meter
    meter.grant_began()
    torch.allocate(GIB)
    torch.free(GIB)
    assert torch.reserved == GIB
    meter.grant_ended(at_boundary=True)
    assert torch.waits == 1
    assert torch.reserved == 0
    assert session.word(Word.RESERVED) == 0


def test_where_lanes_are_shared_torch_keeps_what_it_has(session: Session) -> None:
    """The lane's bytes are the others' as well, so there is nothing to give back."""
    session.meter.count_pages(FakePages())
    session.meter.grant_began()
    session.torch.allocate(GIB)
    session.torch.free(GIB)
    session.meter.grant_ended(at_boundary=True)
    assert session.torch.reserved == GIB


@pytest.mark.parametrize("trouble", ["capture", "failure"])
def test_a_grant_ends_whatever_the_device_says(session: Session, trouble: str) -> None:
    """While a CUDA graph is captured nothing may wait; after a failed CUDA kernel nothing can."""
    torch, meter = session.torch, session.meter
    meter.grant_began()
    torch.allocate(GIB)
    if trouble == "capture":
        torch.capturing = True
    else:
        torch.failure = "CUDA error: an illegal memory access was encountered"
    assert meter.grant_ended(at_boundary=False) == GIB
    assert torch.waits == 0


def test_pages_count_where_they_are_shared(session: Session) -> None:
    """Persistent is what is private by page and what torch has from elsewhere; a lane is sized to hold the peak."""
    torch, meter = session.torch, session.meter
    pages = FakePages(private=300 * MIB, lane=2 * GIB, held=3 * GIB, has_turn=True)
    meter.count_pages(pages)
    meter.grant_began()
    torch.allocate(2 * GIB)
    torch.allocate(GIB + 40 * MIB)
    torch.free(GIB)
    meter.grant_ended(at_boundary=True)
    assert meter.memory.persistent == 340 * MIB, "40 MiB are from elsewhere"
    assert meter.memory.needed == GIB
    assert GIB * 33 // 32 < (meter.memory.ephemeral or 0) < GIB * 9 // 8
    assert session.word(Word.RESERVED) == 340 * MIB + 2 * GIB
    pages.bytes = PageBytes(private=500 * MIB, lane=2 * GIB, held=3 * GIB)
    meter.grant_began()
    assert meter.grant_ended(at_boundary=False) == 200 * MIB, "an interrupted iteration was moved out of the lane"
    assert meter.memory.persistent == 340 * MIB


def test_what_is_only_taken_to_have_it_is_no_peak(session: Session) -> None:
    """A pool that is filled beforehand is no need of the user's, neither ours to see nor theirs."""
    torch, meter = session.torch, session.meter
    meter.grant_began()
    torch.allocate(GIB)
    torch.free(GIB)
    with meter.cuda.unseen():
        torch.allocate(5 * GIB)
        torch.free(5 * GIB)
    assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"] == GIB
    meter.grant_ended(at_boundary=True)
    assert meter.memory.ephemeral == GIB


def test_more_is_allowed_at_once_and_less_from_the_next_grant_on(session: Session) -> None:
    """Memory comes back before there is a grant, and an iteration goes on with what it was granted."""
    torch, meter = session.torch, session.meter
    session.allow(GIB)
    meter.grant_began()
    session.allow(3 * GIB)
    torch.allocate(2 * GIB)
    session.allow(2 * GIB)
    torch.allocate(GIB)
    torch.free(2 * GIB)
    meter.grant_ended(at_boundary=True)
    meter.grant_began()
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.allocate(2 * GIB)


def test_an_allowance_binds_where_pages_come_from(session: Session) -> None:
    """Torch itself has no limit then; the pages have."""
    torch, meter, pages = session.torch, session.meter, FakePages()
    session.allow(2 * GIB)
    meter.count_pages(pages)
    meter.grant_began()
    assert pages.limit_bytes == 2 * GIB
    torch.allocate(3 * GIB)


def test_the_users_own_peaks_stay_theirs(session: Session) -> None:
    """`torch.cuda.max_memory_allocated` and its reset work as without a meter that resets peaks all the time."""
    torch, meter, memory = session.torch, session.meter, session.torch.cuda.memory

    def users_peak() -> int:
        peaks = {
            module.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"] for module in (memory, torch.cuda)
        }
        (peak,) = peaks
        return int(peak)

    meter.grant_began()
    torch.allocate(3 * GIB)
    torch.free(3 * GIB)
    meter.grant_ended(at_boundary=True)
    meter.grant_began()
    assert torch.peak == 0
    assert users_peak() == 3 * GIB
    torch.allocate(GIB)
    torch.free(GIB)
    torch.cuda.reset_peak_memory_stats()
    assert users_peak() == 0
    torch.allocate(MIB)
    torch.free(MIB)
    assert users_peak() == MIB
    meter.grant_ended(at_boundary=True)
    # what the user's reset hid from torch's counter it did not hide from the meter
    assert meter.memory.ephemeral == pytest.approx(GIB + 2 * GIB * 0.98, rel=1e-6)


# --- framework memory -----------------------------------------------------------------------------------------------


def framework(*, processes: dict[int, int | None] | None = None, others: int = 0, **options: bool) -> int:
    """Return the framework memory of a session after its first operation.

    Parameters
    ----------
    processes
        What NVML says of them.
    others
        Bytes that others have taken meanwhile.
    **options
        Those of :class:`Session`.
    """
    session = Session(**options)
    session.gpu.processes, session.torch.others = processes or {}, others
    session.use()
    session.meter.record_offload(0)
    return session.meter.memory.framework


def test_where_processes_are_untold_the_context_is_what_the_device_lacks_since() -> None:
    """Free bytes before and after the context was made, as long as that makes sense."""
    context = FakeTorch().context
    assert framework() == framework(processes={1: GIB}) == framework(processes={os.getpid(): None}) == context
    # In a container NVML numbers processes as the host does; ours may be somebody else's there.
    assert framework(processes={os.getpid(): 50 * GIB}, host_pids=False) == context
    # Somebody else freed or took memory at that moment: a usual figure is better.
    assert framework(others=-3 * GIB) == framework(others=30 * GIB) == framework(nvml=False) == USUAL_CONTEXT_BYTES


def test_an_nvml_that_fails_later_changes_nothing(session: Session) -> None:
    """The figure last measured stays."""
    before = session.meter.memory.framework
    session.gpu.lost = True
    with pytest.raises(NvmlUnavailable):
        Gpu("GPU-1", library=FakeNvml(session.gpu))
    session.meter.record_offload(0)
    assert session.meter.memory.framework == before


# --- plain mode ---------------------------------------------------------------------------------------------------


class PublicTorch(FakeTorch):
    """Has public functions only."""

    def __init__(self) -> None:
        super().__init__()
        del self._C, self.cuda._lazy_call


def test_plain_mode_calls_public_functions_only() -> None:
    """It measures and limits as elsewhere, from the first operation on, and the user's peaks stay theirs."""
    torch = PublicTorch()
    meter = CudaMeter(Page.create("test"), TorchCuda(torch, public_only=True), lambda: None)
    meter.start()
    assert not torch.initialized
    meter.allow(Allowance(limit_bytes=GIB, quota_bytes=GIB, others_bytes=0, capacity_bytes=GIB))
    meter.grant_began()
    meter.device_acquired()
    assert torch.fraction == GIB / torch.total
    torch.allocate(GIB // 2)
    torch.free(GIB // 4)
    meter.grant_ended(at_boundary=True)
    assert meter.memory.persistent == meter.memory.ephemeral == GIB // 4
    assert torch.reserved == GIB // 4, "the rest was given back"
    assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"] == GIB // 2
