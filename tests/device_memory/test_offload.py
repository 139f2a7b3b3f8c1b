"""Offload and restore: unchanged addresses and bytes; cut short, nothing in between."""

from __future__ import annotations

import functools
import random

import pytest

from sharedkernel.device_memory import offload as offloading
from sharedkernel.device_memory.driver import MIB, DeviceMemoryError, InvalidMapping
from sharedkernel.device_memory.mapper import SlotState
from sharedkernel.device_memory.offload import (
    STAGING,
    BackingStore,
    BackingStoreFull,
    bytes_to_keep,
    restore,
    sizes_away,
)
from sharedkernel.device_memory.ranges import LiveRanges
from tests.device_memory.faults import Fault
from tests.device_memory.support import FailingArena, offload, open_descriptors, tensor_at

SIZES = (2 * MIB, 16 * MIB, 2 * MIB, 32 * MIB, 2 * MIB)


class StoreFailed(Exception):
    """The backing store failed."""


class FaultyShelter(BackingStore):
    """Fails, or is interrupted, at a chosen call."""

    fail_at: int | None = None
    error: type[BaseException] = StoreFailed

    def _count(self) -> None:
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                raise self.error("the backing store failed.")

    def write(self, offset: int, data: memoryview) -> None:
        self._count()
        super().write(offset, data)

    def read(self, offset: int, into: memoryview) -> None:
        self._count()
        super().read(offset, into)


class Fixture(FailingArena):
    """An arena of private units of all sizes with random bytes, but for the dead one."""

    def __init__(self) -> None:
        super().__init__()
        for size in SIZES:
            self.arena.add_private_area(self.supplier.private_units([size], mid_iteration=False))
        slots = self.arena.slots()
        self.dead = slots[2]
        self.live = LiveRanges((slot.address + 4096, 512) for slot in slots if slot is not self.dead)
        self.addresses = {slot.address: slot.size for slot in slots if slot is not self.dead}
        noise = random.Random(1)
        self.bytes = {address: noise.randbytes(64) for address in self.addresses}
        for address, content in self.bytes.items():
            self._at(address)[:] = self._at(address).new_tensor(list(content))

    def _at(self, address: int):
        # bytes at the start, the end and at the edges of staging pieces
        size = self.addresses[address]
        return tensor_at(address, size)[:: max(1, size // 63)][:64]

    def check(self) -> None:
        for address, content in self.bytes.items():
            found = self._at(address)
            assert bytes(found.tolist()) == content[: len(found)]
            assert not tensor_at(address, 4096)[1:].any() or self.addresses[address] <= 64

    def given(self):
        return self.supplier.private_units(sizes_away(self.arena), mid_iteration=False)


@pytest.fixture
def fixture():
    before = open_descriptors()
    fixture = Fixture()
    yield fixture
    fixture.driver.fail_at = None
    fixture.settle()
    fixture.arena.close()
    fixture.settle()
    assert open_descriptors() == before


def test_bytes_come_back_to_their_addresses(fixture):
    """All device memory is free meanwhile; what was dead is neither kept nor seen again."""
    fixture.driver.fill(fixture.dead.address, fixture.dead.size, 99)
    size = bytes_to_keep(fixture.arena, fixture.live)
    assert size == sum(SIZES) - fixture.dead.size
    for _ in range(2):
        backing = BackingStore(size)
        assert offload(fixture.arena, fixture.live, backing) == sum(SIZES)
        fixture.settle()
        assert fixture.store.account().total == 0
        assert sorted(sizes_away(fixture.arena)) == sorted(SIZES)
        restore(fixture.arena, fixture.given(), backing)
        backing.close()
        fixture.check()
        assert not tensor_at(fixture.dead.address, fixture.dead.size).any()
        fixture.settle()


@pytest.mark.parametrize("error", [StoreFailed, KeyboardInterrupt], ids=["fails", "is interrupted"])
def test_a_shelter_that_fails_leaves_everything_where_it_is(fixture, error):
    """Offloading and restoring alike, at whichever piece."""
    backing = FaultyShelter(sum(SIZES))
    backing.error = error
    num_pieces = -(-(16 + 2) * MIB // STAGING) + -(-(32 + 2) * MIB // STAGING)
    for failing in range(num_pieces):
        backing.fail_at = failing
        with pytest.raises(error):
            offload(fixture.arena, fixture.live, backing)
        fixture.check()
        fixture.settle()
    offload(fixture.arena, fixture.live, backing)
    for failing in range(num_pieces):
        backing.fail_at = failing
        with pytest.raises(error):
            restore(fixture.arena, fixture.given(), backing)
        assert set(slot.state for slot in fixture.arena.slots()) == {SlotState.AWAY}
        fixture.settle()
    restore(fixture.arena, fixture.given(), backing)
    backing.close()
    fixture.check()


@pytest.mark.parametrize("error", [Fault, KeyboardInterrupt], ids=["fails", "is interrupted"])
def test_a_device_that_fails_leaves_everything_where_it_is(fixture, error):
    """Whichever call of the driver it is."""
    backing = BackingStore(sum(SIZES))

    def is_all(state: SlotState) -> None:
        assert {slot.state for slot in fixture.arena.slots()} == {state}
        if state is SlotState.PRIVATE:
            fixture.check()

    for state, change in (
        (SlotState.PRIVATE, lambda: offload(fixture.arena, fixture.live, backing)),
        (SlotState.AWAY, lambda: restore(fixture.arena, fixture.given(), backing)),
    ):
        assert fixture.fail_everywhere(change, functools.partial(is_all, state), error) > 5
    fixture.check()
    backing.close()


def test_units_that_do_not_fit_are_refused(fixture):
    """And let go."""
    backing = BackingStore(sum(SIZES))
    offload(fixture.arena, fixture.live, backing)
    with pytest.raises(InvalidMapping):
        restore(fixture.arena, fixture.supplier.private_units([2 * MIB], mid_iteration=False), backing)
    fixture.settle()
    assert fixture.store.account().total == 0
    restore(fixture.arena, fixture.given(), backing)
    backing.close()
    fixture.check()


def test_a_session_that_cannot_be_offloaded_goes_on(make_session):
    """Its memory stays where it is, and so does its work."""
    session = make_session("a")
    block = session.allocate(30 * MIB, 5)

    def full(size):
        raise BackingStoreFull("no room.")

    with pytest.raises(BackingStoreFull):
        session.offload(full)
    assert not session.memory.is_away
    session.check(block)
    session.set_lane()
    session.offload()
    for sizes in ([2 * MIB], []):
        with pytest.raises(DeviceMemoryError):
            session.memory.restore(session.supplier.private_units(sizes, mid_iteration=False))
        assert session.memory.is_away
    session.restore()
    session.check(block)


def test_a_session_in_which_nothing_lives_comes_back(make_session):
    """A cell that waits leaves although it has nothing yet; and bringing back what is back changes nothing."""
    session = make_session("a")
    session.offload()
    session.restore()
    block = session.allocate(30 * MIB, 7)
    session.offload()
    session.restore()
    session.restore()
    session.check(block)


def test_dead_pages_are_not_copied(make_session):
    """What torch only keeps for later costs no host memory."""
    session = make_session("a")
    session.free(session.allocate(64 * MIB, 5))
    kept = session.allocate(MIB, 6)
    sizes = []

    def make(size):
        sizes.append(size)
        return BackingStore(size)

    session.offload(make)
    assert sizes == [2 * MIB]
    assert sum(offloading.sizes_away(session.arena)) == 66 * MIB
    session.restore()
    session.check(kept)
    session.allocate(64 * MIB, 7)
