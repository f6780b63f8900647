"""What every KV connector must do, whichever it is."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from baton.errors import BatonError, ErrorCode
from baton.types import KvEndpoint
from kv_transfer.base import KVReceiver, KVSender, Notification, PoolRegion, WriteDone
from kv_transfer.inproc_network import InprocNetwork
from kv_transfer.registry import CONNECTORS, make_receiver, make_sender

SRC_POISON, DST_POISON = 0xAA, 0x55
BLOCK_BYTES = 4096
NUM_BLOCKS = 16
DEADLINE_S = 20.0

Pool = NDArray[np.uint8]  # [blocks, bytes]


@dataclass
class Bench:
    """Makes pools with senders and receivers over them, and closes all of them."""

    connector: str
    network: InprocNetwork | None
    opened: list[KVSender | KVReceiver] = field(default_factory=list)

    def sender(self, name: str = "prefill", num_blocks: int = NUM_BLOCKS) -> tuple[KVSender, Pool]:
        pool = np.full((num_blocks, BLOCK_BYTES), SRC_POISON, dtype=np.uint8)
        sender = make_sender(self.connector, region_of(pool), name, self.network)
        self.opened.append(sender)
        return sender, pool

    def receiver(
        self, name: str = "decode", num_blocks: int = NUM_BLOCKS, block_bytes: int = BLOCK_BYTES
    ) -> tuple[KVReceiver, Pool]:
        pool = np.full((num_blocks, block_bytes), DST_POISON, dtype=np.uint8)
        receiver = make_receiver(self.connector, region_of(pool), name, self.network)
        self.opened.append(receiver)
        return receiver, pool


def region_of(pool: Pool) -> PoolRegion:
    return PoolRegion(pool.ctypes.data, pool.shape[0], pool.shape[1])


@pytest.fixture(params=CONNECTORS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param, InprocNetwork() if request.param == "inproc" else None)
    yield bench
    for opened in bench.opened:
        opened.close()


def noise(num_blocks: int, seed: int = 0) -> Pool:
    return np.random.default_rng(seed).integers(0, 256, (num_blocks, BLOCK_BYTES), dtype=np.uint8)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} took more than {DEADLINE_S} s"
        time.sleep(0.0005)


def finish(sender: KVSender, count: int = 1) -> list[WriteDone]:
    """The next `count` writes to end, which must be all; those of one poll come in the order posted."""
    ended: list[WriteDone] = []

    def all_ended() -> bool:
        batch = sender.poll()
        assert batch == sorted(batch)
        ended.extend(batch)
        return len(ended) >= count

    until(all_ended, f"{count} writes")
    assert len(ended) == count
    assert sender.poll() == []
    return ended


def hear(receiver: KVReceiver, count: int = 1) -> list[Notification]:
    heard: list[Notification] = []
    until(lambda: len(heard) >= count or bool(heard.extend(receiver.poll())), f"{count} notifications")
    assert len(heard) == count
    return heard


def test_blocks_land_where_told_and_nowhere_else(bench: Bench) -> None:
    sender, src = bench.sender()
    receiver, dst = bench.receiver(num_blocks=10)
    sender.connect("d#1", receiver.endpoint())
    src[[3, 4, 15, 0]] = noise(4)
    expected = dst.copy()
    expected[[9, 2, 3, 7]] = src[[3, 4, 15, 0]]
    src_before = src.copy()

    write_id = sender.post("d#1", [3, 4, 15, 0], (9, 2, 3, 7))

    (done,) = finish(sender)
    assert done.write_id == write_id
    assert done.error is None
    assert done.transfer_us >= 0
    np.testing.assert_array_equal(dst, expected)
    np.testing.assert_array_equal(src, src_before)
    assert receiver.poll() == []


def test_a_notification_arrives_once_and_behind_its_data(bench: Bench) -> None:
    sender, src = bench.sender("prefill/7", num_blocks=512)
    receiver, dst = bench.receiver(num_blocks=512)
    sender.connect("d#1", receiver.endpoint())
    src[:] = noise(512)
    order = np.random.default_rng(1).permutation(512).tolist()
    assert receiver.poll() == []

    sender.post("d#1", order, order[::-1], b"\x00ready\xff")

    heard: list[Notification] = []
    ended: list[WriteDone] = []

    def arrived() -> bool:
        heard.extend(receiver.poll())
        if heard:
            np.testing.assert_array_equal(dst[order[::-1]], src[order])
        ended.extend(sender.poll())
        return bool(heard)

    until(arrived, "the notification")
    until(lambda: bool(ended) or bool(ended.extend(sender.poll())), "the write")
    assert heard == [Notification("prefill/7", b"\x00ready\xff")]
    assert ended[0].error is None
    assert receiver.poll() == []


def test_the_receiver_need_not_poll_for_data_to_land(bench: Bench) -> None:
    sender, src = bench.sender()
    receiver, dst = bench.receiver()
    sender.connect("d#1", receiver.endpoint())
    src[:] = noise(NUM_BLOCKS)
    for i in range(NUM_BLOCKS):
        sender.post("d#1", [i], [i], b"%d" % i)
    assert [done.error for done in finish(sender, NUM_BLOCKS)] == [None] * NUM_BLOCKS
    np.testing.assert_array_equal(dst, src)
    assert sorted(int(heard.payload) for heard in hear(receiver, NUM_BLOCKS)) == list(range(NUM_BLOCKS))


def test_many_writes_each_end_once_in_the_order_posted(bench: Bench) -> None:
    sender, src = bench.sender()
    receiver, dst = bench.receiver()
    sender.connect("d#1", receiver.endpoint())
    rng = np.random.default_rng(2)
    for wave in range(20):
        src[:] = noise(NUM_BLOCKS, seed=wave)
        targets = rng.permutation(NUM_BLOCKS)
        ids = [sender.post("d#1", [i], [int(targets[i])]) for i in range(NUM_BLOCKS)]
        ended = finish(sender, NUM_BLOCKS)
        assert sorted(done.write_id for done in ended) == ids
        assert len(set(ids)) == NUM_BLOCKS
        np.testing.assert_array_equal(dst[targets], src)


def test_one_sender_serves_several_peers(bench: Bench) -> None:
    sender, src = bench.sender()
    src[:] = noise(NUM_BLOCKS)
    peers = {f"d#{i}": bench.receiver(f"decode-{i}", num_blocks=4 + i) for i in range(3)}
    for peer_id, (receiver, _) in peers.items():
        sender.connect(peer_id, receiver.endpoint())
    for block in range(4):
        for peer_id in peers:
            sender.post(peer_id, [block], [3 - block], f"{peer_id}:{block}".encode())
    assert [done.error for done in finish(sender, 12)] == [None] * 12
    for peer_id, (receiver, dst) in peers.items():
        np.testing.assert_array_equal(dst[:4], src[3::-1])
        assert (dst[4:] == DST_POISON).all()
        assert {heard.payload.decode() for heard in hear(receiver, 4)} == {f"{peer_id}:{block}" for block in range(4)}


def test_several_senders_share_a_receiver(bench: Bench) -> None:
    receiver, dst = bench.receiver()
    senders = [bench.sender(f"prefill-{i}") for i in range(3)]
    for i, (sender, src) in enumerate(senders):
        src[:] = i
        sender.connect("d#1", receiver.endpoint())
        sender.post("d#1", [0, 1], [i, i + 8], f"from {i}".encode())
    for sender, _ in senders:
        finish(sender)
    assert set(hear(receiver, 3)) == {Notification(f"prefill-{i}", f"from {i}".encode()) for i in range(3)}
    assert dst[[0, 1, 2, 8, 9, 10], 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert (dst[[*range(3, 8), *range(11, 16)]] == DST_POISON).all()


def test_connecting_twice_is_connecting_once(bench: Bench) -> None:
    sender, _ = bench.sender()
    receiver, _ = bench.receiver()
    assert receiver.endpoint() == receiver.endpoint()
    assert sender.connect("d#1", receiver.endpoint()) == NUM_BLOCKS
    assert sender.connect("d#1", receiver.endpoint()) == NUM_BLOCKS
    sender.post("d#1", [0], [0], b"once")
    assert finish(sender)[0].error is None
    assert [heard.payload for heard in hear(receiver)] == [b"once"]
    sender.disconnect("d#1")
    with pytest.raises(ValueError, match="'d#1', expected one that is connected; call connect first"):
        sender.post("d#1", [0], [0])


def test_a_peer_can_be_connected_again(bench: Bench) -> None:
    sender, src = bench.sender()
    receiver, dst = bench.receiver()
    for life in range(3):
        src[:] = noise(NUM_BLOCKS, seed=life)
        sender.connect("d#1", receiver.endpoint())
        sender.post("d#1", [life], [life + 1], b"life %d" % life)
        assert finish(sender)[0].error is None
        np.testing.assert_array_equal(dst[life + 1], src[life])
        assert hear(receiver)[0].payload == b"life %d" % life
        sender.disconnect("d#1")
        sender.disconnect("d#1")
    sender.disconnect("never heard of")


def test_a_closed_receiver_is_an_error_of_the_write(bench: Bench) -> None:
    sender, src = bench.sender()
    receiver, dst = bench.receiver()
    survivor, survivor_pool = bench.receiver("decode-2")
    sender.connect("d#1", receiver.endpoint())
    sender.connect("d#2", survivor.endpoint())
    sender.post("d#1", [0], [0])
    assert finish(sender)[0].error is None
    receiver.close()
    receiver.close()
    dst[:] = DST_POISON
    assert receiver.poll() == []

    failed, fine = sender.post("d#1", [1], [1], b"lost"), sender.post("d#2", [2], [3], b"kept")

    ended = {done.write_id: done.error for done in finish(sender, 2)}
    assert ended[failed] is not None
    assert "d#1" in ended[failed]
    assert ended[fine] is None
    # NIXL reports an error and yet writes block 1, about once in ten runs: a failed write may still land.
    assert (dst[2:] == DST_POISON).all()
    np.testing.assert_array_equal(survivor_pool[3], src[2])
    assert hear(survivor)[0].payload == b"kept"
    sender.disconnect("d#1")
    reborn, reborn_pool = bench.receiver()
    assert reborn.endpoint() != receiver.endpoint()
    sender.connect("d#1b", reborn.endpoint())
    sender.post("d#1b", [4], [4])
    assert finish(sender)[0].error is None
    np.testing.assert_array_equal(reborn_pool[4], src[4])


def test_closing_a_sender_is_final_and_idempotent(bench: Bench) -> None:
    sender, _ = bench.sender()
    receiver, _ = bench.receiver()
    sender.connect("d#1", receiver.endpoint())
    write_id = sender.post("d#1", [0], [0])
    sender.close()
    sender.close()
    assert [done.write_id for done in sender.poll()] == [write_id]
    assert sender.poll() == []
    sender.disconnect("d#1")
    with pytest.raises(ValueError, match="expected one that is connected"):
        sender.post("d#1", [0], [0])
    with pytest.raises(BatonError, match="connect after close; make a new sender") as caught:
        sender.connect("d#2", receiver.endpoint())
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("src_blocks", "dst_blocks", "message"),
    [
        ([0, 16], [0, 1], "got source block 16, expected 0 to 15"),
        ([-1], [0], "got source block -1, expected 0 to 15"),
        ([0], [12], "got destination block 12, expected 0 to 11"),
        ([0], [-5], "got destination block -5, expected 0 to 11"),
        ([0], [2**40], f"got destination block {2**40}, expected 0 to 11"),
        ([0, 1], [0], "got 2 source and 1 destination blocks, expected equally many"),
        ([], [], "got a write of no blocks, expected at least one"),
    ],
)
def test_wrong_block_ids_never_become_addresses(
    bench: Bench, src_blocks: list[int], dst_blocks: list[int], message: str
) -> None:
    sender, _ = bench.sender()
    receiver, dst = bench.receiver(num_blocks=12)
    assert sender.connect("d#1", receiver.endpoint()) == 12
    with pytest.raises(ValueError, match=message):
        sender.post("d#1", src_blocks, dst_blocks, b"note")
    assert sender.poll() == []
    assert receiver.poll() == []
    assert (dst == DST_POISON).all()


def test_an_empty_notification_is_refused(bench: Bench) -> None:
    sender, _ = bench.sender()
    receiver, _ = bench.receiver()
    sender.connect("d#1", receiver.endpoint())
    with pytest.raises(ValueError, match="got an empty notification, expected some bytes; pass None"):
        sender.post("d#1", [0], [0], b"")


def test_another_block_size_is_refused(bench: Bench) -> None:
    sender, _ = bench.sender()
    receiver, _ = bench.receiver(block_bytes=BLOCK_BYTES * 2)
    with pytest.raises(BatonError, match="kv block bytes: got 8192 on peer d#1, expected 4096 as here") as caught:
        sender.connect("d#1", receiver.endpoint())
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


def test_another_connector_is_refused(bench: Bench) -> None:
    sender, _ = bench.sender()
    with pytest.raises(BatonError, match="kv connector: got 'pigeon' on peer d#1, expected") as caught:
        sender.connect("d#1", KvEndpoint("pigeon", b""))
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


def garblings(metadata: bytes) -> dict[str, bytes]:
    fields = msgspec.msgpack.decode(metadata)
    return {
        "nothing": b"",
        "text": b"not msgpack",
        "cut": metadata[:-3],
        "longer": metadata + b"\x00",
        "other shape": msgspec.msgpack.encode([1, 2, 3]),
        "missing field": msgspec.msgpack.encode({"block_bytes": BLOCK_BYTES}),
        "unknown field": msgspec.msgpack.encode({**fields, "surprise": 1}),
        "too many blocks": msgspec.msgpack.encode({**fields, "num_blocks": 2**40}),
        "no blocks": msgspec.msgpack.encode({**fields, "num_blocks": 0}),
        "wrong type": msgspec.msgpack.encode({**fields, "num_blocks": "16"}),
    }


@pytest.mark.parametrize("how", garblings(msgspec.msgpack.encode({})))
def test_garbled_metadata_is_refused(bench: Bench, how: str) -> None:
    sender, _ = bench.sender()
    receiver, _ = bench.receiver()
    endpoint = receiver.endpoint()
    with pytest.raises(BatonError, match="kv endpoint: got") as caught:
        sender.connect("d#1", KvEndpoint(endpoint.connector, garblings(endpoint.metadata)[how]))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    sender.connect("d#1", endpoint)
    sender.post("d#1", [0], [0])
    assert finish(sender)[0].error is None


def test_unknown_connectors_are_refused_by_name() -> None:
    region = PoolRegion(0, 1, 8)
    for make in (make_sender, make_receiver):
        with pytest.raises(BatonError, match="got 'pigeon', expected one of inproc, nixl") as caught:
            make("pigeon", region, "w")
        assert caught.value.code is ErrorCode.INVALID_ARGUMENT
        with pytest.raises(BatonError, match="got no network, expected the InprocNetwork"):
            make("inproc", region, "w")
