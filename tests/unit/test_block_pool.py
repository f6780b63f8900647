"""The block pool keeps every block in exactly one state, whatever is done to it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import BlockPool


def make_hash(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_prefix_hits_stop_at_the_first_gap() -> None:
    pool = BlockPool(8)
    blocks = pool.allocate(3)
    assert blocks is not None
    pool.register(blocks[0], make_hash(0))
    pool.register(blocks[2], make_hash(2))
    assert pool.count_hits([make_hash(0), make_hash(1), make_hash(2)]) == 1
    assert pool.take_prefix([make_hash(0), make_hash(1)]) == [blocks[0]]
    assert pool.stats().active == 3


def test_evicts_the_least_recently_released_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    assert blocks is not None
    for number, block in enumerate(blocks):
        pool.register(block, make_hash(number))
    pool.release([blocks[1]])
    pool.release([blocks[0], blocks[2]])
    pool.take_changes()
    assert pool.allocate(1) == [blocks[1]]
    assert pool.take_changes() == ((), (make_hash(1),))
    assert pool.count_hits([make_hash(0)]) == 1


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.stats().free == 4


def test_quarantined_blocks_are_not_reused_until_lifted_or_expired() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2), pool.allocate(2)
    assert first is not None
    assert second is not None
    pool.quarantine("a", first, until_unix_ns=100)
    pool.quarantine("b", second, until_unix_ns=200)
    assert pool.allocate(1) is None
    pool.expire_quarantine(100, lambda fence_id: False)
    assert pool.num_allocatable == 2
    pool.lift("b")
    pool.lift("b")
    assert pool.num_allocatable == 4
    assert pool.check_integrity([]) == []


def test_shared_or_cached_blocks_cannot_be_quarantined() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.register(blocks[0], make_hash(0))
    with pytest.raises(RuntimeError, match="shared or cached"):
        pool.quarantine("a", blocks, 1)


def test_releasing_twice_is_refused() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="more often"):
        pool.release(blocks)


def test_integrity_check_sees_a_leak_and_a_stray_reference() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    assert blocks is not None
    assert "wrong reference counts" in pool.check_integrity([])[0]
    assert "wrong reference counts" in pool.check_integrity([blocks, blocks])[0]
    assert pool.check_integrity([blocks]) == []


def test_a_reset_drops_what_nobody_references() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert blocks is not None
    for number, block in enumerate(blocks):
        pool.register(block, make_hash(number))
    pool.release(blocks[1:])
    pool.take_changes()
    assert pool.reset_cache() == 2
    assert set(pool.take_changes()[1]) == {make_hash(1), make_hash(2)}
    assert pool.count_hits([make_hash(0), make_hash(1)]) == 1
    assert pool.stats().free == 3
    assert pool.reset_cache() == 0


def test_changes_report_where_a_hash_is_now() -> None:
    pool = BlockPool(1)
    for number in (1, 2, 1):
        blocks = pool.allocate(1)
        assert blocks is not None
        pool.register(blocks[0], make_hash(number))
        pool.release(blocks)
    assert pool.take_changes() == ((make_hash(1),), (make_hash(2),))


class PoolMachine(RuleBasedStateMachine):
    """Random use by many holders; after each step all blocks are accounted for."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.held: list[list[int]] = []
        self.fences: list[str] = []
        self.clock = 0

    @rule(count=st.integers(1, 6))
    def allocate(self, count: int) -> None:
        room = self.pool.num_allocatable
        blocks = self.pool.allocate(count)
        assert (blocks is not None) == (count <= room)
        if blocks:
            self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), number=st.integers(0, 5))
    def register(self, data: st.DataObject, number: int) -> None:
        self.pool.register(data.draw(st.sampled_from(self.held))[0], make_hash(number))

    @rule(numbers=st.lists(st.integers(0, 5), max_size=3))
    def take_prefix(self, numbers: list[int]) -> None:
        blocks = self.pool.take_prefix([make_hash(number) for number in numbers])
        if blocks:
            self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        self.held.remove(blocks)
        self.pool.release(reversed(blocks))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        fence = f"fence-{len(self.fences)}"
        try:
            self.pool.quarantine(fence, blocks, self.clock + 5)
        except RuntimeError:
            return
        self.fences.append(fence)
        self.held.remove(blocks)

    @rule()
    def reset_cache(self) -> None:
        cached = self.pool.stats().cached
        assert self.pool.reset_cache() == cached
        assert self.pool.stats().cached == 0

    @precondition(lambda self: self.fences)
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        self.pool.lift(data.draw(st.sampled_from(self.fences)))

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.clock += seconds
        self.pool.expire_quarantine(self.clock, lambda fence_id: False)

    @invariant()
    def accounted_for(self) -> None:
        assert self.pool.check_integrity(self.held) == []
        stats = self.pool.stats()
        assert stats.free + stats.cached + stats.active + stats.quarantined == stats.total == 12


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
