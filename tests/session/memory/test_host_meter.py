"""The host device's meter against known allocations."""

from __future__ import annotations

import gc
import mmap
import threading
from pathlib import Path

import pytest
import torch

from sharedkernel.ipc.shared_page import Page, Word
from sharedkernel.session.memory.host_meter import STABLE_AFTER, HostMeter, private_bytes

MIB = 1 << 20


@pytest.fixture
def page() -> Page:
    return Page.create("test")  # never closed: the sampler's thread holds its words for life


@pytest.fixture
def samples() -> list[int]:
    """Return the bytes in use at each sample, the latest last."""
    return []


@pytest.fixture
def meter(page: Page, samples: list[int]) -> HostMeter:
    gc.collect()
    meter = HostMeter(page)
    meter.start(on_sample=samples.append)
    return meter


def test_the_peak_of_an_iteration_is_ephemeral(meter: HostMeter, page: Page) -> None:
    """What is there between two boundaries and gone at the second is ephemeral; what is kept is persistent."""
    kept = torch.empty(8 * MIB, dtype=torch.uint8)
    meter.grant_began()
    scratch = torch.empty(64 * MIB, dtype=torch.uint8)
    sampled = threading.Event()
    # The sampler needs a moment to see it, as it has in any iteration of a few milliseconds.
    while page.words[Word.LIVE] < 60 * MIB:
        sampled.wait(0.001)
    del scratch
    assert meter.grant_ended(at_boundary=True) == 0
    assert meter.memory.persistent == pytest.approx(8 * MIB, abs=MIB)
    assert page.words[Word.PERSISTENT] == meter.memory.persistent
    assert meter.memory.ephemeral == pytest.approx(64 * MIB, abs=MIB)
    del kept
    meter.measure_idle()
    assert meter.memory.persistent < MIB


def test_in_the_middle_of_an_iteration_live_bytes_are_not_persistent(meter: HostMeter) -> None:
    """A yield reports what is live and leaves persistent as it was."""
    meter.measure_idle()
    before = meter.memory.persistent
    meter.grant_began()
    activations = torch.empty(16 * MIB, dtype=torch.uint8)
    live = meter.grant_ended(at_boundary=False)
    assert live == pytest.approx(16 * MIB, abs=MIB)
    assert meter.memory.persistent == before
    assert len(activations) == 16 * MIB


def test_a_source_measured_before_is_sampled_closely_for_a_moment_only(meter: HostMeter, samples: list[int]) -> None:
    """And again for as long as ever once its peak rises."""

    def until_stable(source: str) -> int:
        meter.look_closely()
        meter.source_read(source)
        meter.source_read("what it runs itself")
        samples.clear()
        meter.grant_began()
        while not meter.is_stable:
            threading.Event().wait(0.001)
        taken = len(samples)
        meter.grant_ended(at_boundary=True)
        return taken

    kept = torch.empty(8 * MIB, dtype=torch.uint8)
    meter.measure_idle()
    assert until_stable("training") >= STABLE_AFTER - 1
    assert until_stable("another") >= STABLE_AFTER - 1
    assert until_stable("training") < STABLE_AFTER // 2
    meter.look_closely()
    meter.source_read("training")
    meter.grant_began()
    while not meter.is_stable:
        threading.Event().wait(0.001)
    scratch = torch.empty(64 * MIB, dtype=torch.uint8)
    while meter.is_stable:
        threading.Event().wait(0.001)
    meter.grant_ended(at_boundary=True)
    assert kept.numel()
    assert scratch.numel()


def test_what_was_read_of_a_file_is_no_memory_of_the_process(tmp_path: Path) -> None:
    """The system takes it back whenever it wants; what was written to a private map of it is."""
    file = tmp_path / "data"
    with file.open("wb") as written:
        written.truncate(64 * MIB)
    before = private_bytes()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        assert mapped[::4096].count(0) == 64 * MIB // 4096
        assert private_bytes() - before < 16 * MIB
        for place in range(0, 64 * MIB, 4096):
            mapped[place] = 1
        assert private_bytes() - before > 48 * MIB
