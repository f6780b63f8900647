"""The index of owned blocks beside a dictionary of sets; its bound; events and their bytes."""

import random

from baton.directory.events import BlockEvent, changes_of, decode, encode, hashes_of, net_change
from baton.directory.index import OwnerIndex
from baton.types import WorkerRef

KEYS = [bytes([i, j]) * 8 for i in range(16) for j in range(16)]


def leading(keys: list[bytes], owned: set[bytes]) -> int:
    return next((count for count, key in enumerate(keys) if key not in owned), len(keys))


def test_it_says_what_sets_would_say() -> None:
    chance, index = random.Random(5), OwnerIndex()
    workers = [WorkerRef(f"w{i}", "0") for i in range(70)]
    owned: dict[WorkerRef, set[bytes]] = {}
    for turn in range(4000):
        worker = chance.choice(workers)
        if chance.random() < 0.05:
            index.forget(worker)
            owned.pop(worker, None)
        else:
            start = chance.randrange(len(KEYS))
            stored, removed = KEYS[start : start + 40], chance.sample(KEYS, 5)
            index.change(worker, removed, stored)
            owned[worker] = (owned.get(worker, set()) - set(removed)) | set(stored)
        if chance.random() < 0.3:
            index.sweep(max_hashes=50)
        if turn % 20 == 0:
            start = chance.randrange(len(KEYS))
            asked = KEYS[start : start + 60]
            expected = {ref: leading(asked, owned.get(ref, set())) for ref in workers}
            assert index.longest_prefixes(asked, workers) == expected
            assert index.longest_prefixes(asked, workers[:1]) == {workers[0]: expected[workers[0]]}
    for ref in workers:
        index.forget(ref)
    for _ in range(20):
        index.sweep()
    assert len(index) == 0
    assert index._num_slots <= 2 * len(workers)  # slots are used again


def test_nothing_grows_beyond_the_bound() -> None:
    index, first, second = OwnerIndex(max_hashes=10), WorkerRef("a", "0"), WorkerRef("b", "0")
    index.change(first, (), KEYS[:20])
    index.change(second, (), KEYS[:20])
    assert (len(index), index.num_refused) == (10, 20)
    assert index.longest_prefixes(KEYS, [first, second]) == {first: 10, second: 10}
    index.change(first, KEYS[:5], ())
    index.change(second, KEYS[:5], KEYS[15:18])
    assert index.longest_prefixes(KEYS[15:20], [second]) == {second: 3}


def test_owners_that_come_back_are_new() -> None:
    index, worker = OwnerIndex(), WorkerRef("a", "0")
    index.change(worker, (), KEYS)
    index.forget(worker)
    index.forget(worker)
    assert index.longest_prefixes(KEYS, [worker]) == {worker: 0}
    index.change(worker, (), KEYS[:3])
    assert index.longest_prefixes(KEYS, [worker]) == {worker: 3}


def test_events_survive_the_wire_and_others_do_not() -> None:
    event = BlockEvent("a", "0", 7, KEYS[0] + KEYS[1], KEYS[2])
    assert decode(encode(event)) == event
    assert (hashes_of(event.removed), hashes_of(event.stored)) == (KEYS[:2], KEYS[2:3])
    assert not event.rewritten
    assert BlockEvent("a", "0", 8).rewritten
    for data in (b"", b"\xff", encode(["a", "0"]), encode(["a", "0", "x"]), encode(BlockEvent("a", "0", 1, b"odd"))):
        assert decode(data) is None


def test_changes_one_after_the_other_are_one_change() -> None:
    removed, stored = net_change([((), KEYS[:3]), (KEYS[:1], ()), (KEYS[1:2], KEYS[1:2]), (KEYS[9:10], ())])
    assert (set(removed), set(stored)) == ({KEYS[0], KEYS[9]}, {KEYS[1], KEYS[2]})
    many = [i.to_bytes(16, "big") for i in range(1200)]
    parts = list(changes_of(many[:3], many))
    assert [(len(removed) // 16, len(stored) // 16) for removed, stored in parts] == [
        (3, 0),
        (0, 512),
        (0, 512),
        (0, 176),
    ]
