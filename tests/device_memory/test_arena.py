"""The page table: each change is done as a whole or not at all, wherever the driver fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.driver import MIB, ArenaBroken, InvalidMapping, OutOfDeviceMemory
from sharedkernel.device_memory.mapper import SlotState
from sharedkernel.device_memory.store import LaneStore
from tests.device_memory.memfd import MemfdDriver
from tests.device_memory.support import LANE, FailingArena, StoreSupplier, open_descriptors, tensor_at

UNIT = 2 * MIB


class Fixture(FailingArena):
    """An arena with a lane of 12 units in one area, and two private units."""

    def __init__(self) -> None:
        super().__init__()
        layout = self.store.create_lane(LANE, 24 * MIB)
        self.arena.import_lane(self.supplier.given(self.store.share_lane(LANE, "a")))
        self.lane = self.arena.add_lane_area(layout.units)
        self.layout = layout
        self.private = self.arena.add_private_area(self.supplier.private_units([UNIT, UNIT], mid_iteration=False))
        self.bytes = {slot.address: number + 1 for number, slot in enumerate(self.arena.slots())}
        for slot in self.arena.slots():
            self.driver.fill(slot.address, slot.size, self.bytes[slot.address])

    def states(self) -> list[tuple[int, SlotState, object]]:
        return [(slot.address, slot.state, slot.unit) for slot in self.arena.slots()]

    def check_bytes(self) -> None:
        for slot in self.arena.slots():
            if slot.state is not SlotState.UNMAPPED and slot.address in self.bytes:
                assert tensor_at(slot.address, slot.size).eq(self.bytes[slot.address]).all()


@pytest.fixture
def fixture():
    before = open_descriptors()
    fixture = Fixture()
    yield fixture
    fixture.driver.fail_at = None
    fixture.arena.close()
    fixture.store.remove_lane(LANE)
    assert fixture.store.account().total == 0
    assert open_descriptors() == before


def _make_private(f: Fixture) -> None:
    slots = [f.lane.slots[number] for number in (1, 2, 3, 7)]
    f.arena.make_private(slots, f.supplier.private_units([slot.size for slot in slots], mid_iteration=False))


def _remove_private(f: Fixture) -> None:
    f.arena.remove(f.private.slots[:1])


def _clear_lane(f: Fixture) -> None:
    f.arena.clear(f.lane.slots[3:9])


def _add_private(f: Fixture) -> None:
    f.arena.add_private_area(f.supplier.private_units([UNIT] * 3, mid_iteration=False))


def _add_lane(f: Fixture) -> None:
    f.arena.add_lane_area(f.layout.units)


def _drop_lane(f: Fixture) -> None:
    f.arena.drop_lane(unit.unit for unit in f.layout.units[4:8])


def _rejoin(f: Fixture) -> None:
    f.arena.rejoin([slot for slot in f.lane.slots if slot.state is SlotState.PRIVATE])


@pytest.mark.parametrize(
    "change",
    [_make_private, _rejoin, _remove_private, _clear_lane, _add_private, _add_lane, _drop_lane],
    ids=lambda c: c.__name__,
)
def test_a_change_that_fails_anywhere_changes_nothing(fixture, change: Callable[[Fixture], None]):
    """Whichever call of the driver fails, states and bytes are as before; then the change works."""
    if change is _rejoin:  # to the lane's bytes, which nobody has changed
        _make_private(fixture)
    before = fixture.states()

    def is_as_before() -> None:
        assert fixture.states() == before
        fixture.check_bytes()

    assert fixture.fail_everywhere(lambda: change(fixture), is_as_before) >= 2
    assert fixture.states() != before
    fixture.check_bytes()
    fixture.settle()


def test_a_private_page_is_cut_off_from_the_lane(fixture):
    """Written after it became private, the lane does not change; written in the lane, it does not."""
    _make_private(fixture)
    other = fixture.arena.add_lane_area(fixture.layout.units)
    private, shown = fixture.lane.slots[1], other.slots[1]
    fixture.driver.fill(shown.address, shown.size, 200)
    assert tensor_at(private.address, private.size).eq(2).all()
    fixture.driver.fill(private.address, private.size, 100)
    assert tensor_at(shown.address, shown.size).eq(200).all()
    assert fixture.lane.slots[0].unit == other.slots[0].unit
    assert tensor_at(other.slots[0].address, UNIT).eq(1).all()
    fixture.arena.scrub_lane()
    assert tensor_at(private.address, private.size).eq(100).all()
    assert tensor_at(shown.address, shown.size).eq(0).all()
    fixture.arena.remove(other.slots)
    fixture.arena.scrub_lane(9)
    other = fixture.arena.add_lane_area(fixture.layout.units)
    assert tensor_at(other.address, other.size).eq(9).all(), "a hidden page of the lane was not scrubbed"


def test_what_cannot_be_undone_says_that_the_session_must_end(fixture):
    """A device that fails for good in the middle of a change."""
    fixture.driver.fails_for_good = True
    fixture.driver.fail_at = 3
    with pytest.raises(ArenaBroken, match="restart its kernel"):
        fixture.arena.clear(fixture.lane.slots[::2])
    fixture.driver.fail_at = None
    # let the fixture close: what is still mapped is unmapped one by one
    for slot in fixture.lane.slots:
        with contextlib.suppress(InvalidMapping):
            fixture.driver.unmap(slot.address, slot.size)
        slot.state, slot.unit, slot.handle = SlotState.UNMAPPED, None, None


def test_addresses_run_out_in_one_sentence():
    """A session that has used up its addresses says what to do."""
    driver = MemfdDriver()
    store = LaneStore(driver)
    supplier = StoreSupplier(store, "a")
    arena = Arena(MemfdDriver(), supplier.release_units, [320 * MIB])
    with pytest.raises(OutOfDeviceMemory, match="restart its kernel"):
        arena.add_private_area(supplier.private_units([64 * MIB, 2 * MIB], mid_iteration=False))
    assert store.account().total == 0
    arena.close()
