"""What counts as persistent, live, needed and predicted, whoever measures it."""

from __future__ import annotations

import os
import threading

import pytest

from sharedkernel.ipc.shared_page import Page, Word
from sharedkernel.session.memory.meters import MemoryFigures


@pytest.fixture
def page() -> Page:
    return Page.create("test")


@pytest.fixture
def figures(page: Page) -> MemoryFigures:
    return MemoryFigures(page)


def test_what_a_yield_says_is_replaced_at_the_end_of_the_section(figures: MemoryFigures, page: Page) -> None:
    """A cell that makes a large tensor, and yields on the way: nothing of it was ephemeral."""
    figures.section_began("make")
    figures.grant_began()
    assert figures.interrupted(2000) == 2000
    assert (figures.memory.persistent, figures.memory.ephemeral) == (0, 2000)
    figures.section_ended(2000)
    assert (figures.memory.persistent, figures.memory.ephemeral, page.words[Word.LIVE]) == (2000, 0, 0)
    assert page.words[Word.PERSISTENT] == 2000


def test_what_was_freed_leaves_at_the_end_of_a_section_without_a_grant(figures: MemoryFigures, page: Page) -> None:
    """The peak that it had on the way was needed, and is no more."""
    figures.section_began("free")
    figures.grant_began()
    figures.interrupted(2000)
    figures.section_ended(300)
    assert (figures.memory.persistent, figures.memory.ephemeral, page.words[Word.LIVE]) == (300, 1700, 0)
    figures.section_began("del")
    figures.section_ended(0)
    assert (figures.memory.persistent, page.words[Word.PERSISTENT], page.words[Word.LIVE]) == (0, 0, 0)


def test_a_late_sample_changes_nothing(figures: MemoryFigures, page: Page) -> None:
    """It was taken before the grant ended, or before the last boundary."""
    figures.grant_began()
    stretch = figures.stretch
    assert figures.sampled(stretch, 500)
    assert page.words[Word.LIVE] == 500
    figures.iteration_ended(100)
    assert not figures.sampled(stretch, 900)
    assert (page.words[Word.LIVE], figures.peak) == (0, 100)
    figures.grant_began()
    figures.iteration_ended(100)
    assert figures.memory.ephemeral == round(400 * 0.98), "the late sample is no peak either"


def test_persistent_memory_that_was_freed_is_not_live_in_the_middle_of_an_iteration(figures: MemoryFigures) -> None:
    """Or whoever frees much and asks for much would be charged for both."""
    figures.settle(2000)
    figures.grant_began()
    assert figures.interrupted(100) == 0
    assert figures.memory.persistent == 100


def test_a_need_is_known_in_its_section_and_predicted_for_its_source(figures: MemoryFigures) -> None:
    """Another source gets a guess, which its first measurement replaces."""
    figures.section_began("train")
    assert figures.memory.ephemeral is None
    figures.grant_began()
    figures.iteration_ended(100, peak=700)
    assert (figures.memory.ephemeral, figures.memory.needed, figures.memory.is_guess) == (600, 600, False)
    figures.section_ended(100)
    assert (figures.memory.ephemeral, figures.memory.needed) == (600, 0)
    figures.section_began("show")
    assert (figures.memory.ephemeral, figures.memory.is_guess) == (600, True)
    figures.grant_began()
    figures.iteration_ended(100, peak=110)
    assert (figures.memory.ephemeral, figures.memory.needed, figures.memory.is_guess) == (10, 10, False)
    figures.section_ended(100)
    figures.section_began("train")
    assert (figures.memory.ephemeral, figures.memory.needed, figures.memory.is_guess) == (600, 0, False)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # since Python 3.12, where there are threads
def test_a_forked_child_measures_although_a_thread_of_its_parent_did(figures: MemoryFigures) -> None:
    """The thread is not in the child, and would hold the lock for ever."""
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with figures._lock:
            holds.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    child = os.fork()
    if child == 0:
        figures.settle(1)
        os._exit(7)
    _, status = os.waitpid(child, 0)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7
