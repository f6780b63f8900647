"""Tethers over the loopback: who is believed to write, and what a peer that misbehaves can do."""

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from baton.errors import BatonError, ErrorCode
from kv_transfer.tether import listener as listener_module
from kv_transfer.tether.listener import TetherListener, TetherOptions
from kv_transfer.tether.wire import BEGIN, FRAME_BYTES, TOKEN_BYTES, TetherAddress, key_of
from kv_transfer.tether.writer import Tethers

LINGER_S = 5.0


class Bench:
    """One listener, whose clock stands still, and one sender's tethers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.listener = TetherListener(TetherOptions(linger_s=LINGER_S), lambda: self.now_s)
        self.tethers = Tethers()
        self.socks: list[socket.socket] = []

    def connect(self) -> None:
        self.tethers.open("d", self.listener.address)
        self.until(lambda: self.tethers.begin("d", "first"))
        self.tethers.end("d", "first")

    def raw(self) -> socket.socket:
        """A connection that has been greeted, for any bytes."""
        sock = socket.create_connection((self.listener.address.host, self.listener.address.port), timeout=10)
        self.socks.append(sock)
        self.listener.poll()
        assert sock.recv(TOKEN_BYTES) == self.listener.address.token
        return sock

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true within 10 s"
            self.listener.poll()
            self.tethers.poll()
            time.sleep(0.0005)

    def is_written(self, grant_id: str) -> Callable[[], bool]:
        return lambda: self.listener.writing(grant_id)

    def is_free(self, grant_id: str) -> Callable[[], bool]:
        return lambda: not self.listener.writing(grant_id)

    def close(self) -> None:
        self.tethers.close_all()
        self.listener.close()
        for sock in self.socks:
            sock.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_grant_is_written_from_begin_to_end(bench: Bench) -> None:
    bench.connect()
    assert bench.tethers.begin("d", "a")
    assert bench.tethers.begin("d", "b")
    assert bench.tethers.begin("d", "a")  # said once
    bench.until(lambda: bench.listener.writing("a") and bench.listener.writing("b"))
    bench.tethers.end("d", "a")
    bench.tethers.end("d", "unknown")
    bench.until(bench.is_free("a"))
    assert bench.listener.writing("b")
    assert not bench.listener.writing("unknown")


def test_nothing_begins_before_the_listener_has_greeted(bench: Bench) -> None:
    bench.tethers.open("d", bench.listener.address)
    for _ in range(20):
        assert not bench.tethers.begin("d", "a")
        time.sleep(0.001)
    bench.listener.poll()
    bench.until(lambda: bench.tethers.begin("d", "a"))


def test_a_writer_that_is_gone_counts_until_its_last_write_must_have_landed(bench: Bench) -> None:
    bench.connect()
    assert bench.tethers.begin("d", "a")
    bench.until(bench.is_written("a"))
    bench.tethers.close("d")
    bench.now_s += 1000  # however long it was connected
    bench.until(lambda: not bench.listener._connections)
    bench.now_s += LINGER_S - 0.1
    bench.listener.poll()
    assert bench.listener.writing("a")
    bench.now_s += 0.2
    bench.listener.poll()
    assert not bench.listener.writing("a")


def test_one_of_two_writers_is_enough(bench: Bench) -> None:
    bench.connect()
    assert bench.tethers.begin("d", "a")
    bench.until(bench.is_written("a"))
    sock = bench.raw()
    sock.sendall(BEGIN + key_of("a"))
    sock.close()
    bench.until(lambda: len(bench.listener._connections) == 1)
    bench.now_s += LINGER_S
    bench.listener.poll()
    assert bench.listener.writing("a")
    bench.tethers.end("d", "a")
    bench.until(bench.is_free("a"))


@pytest.mark.parametrize("host", ["127.0.0.1", "no address"])
def test_a_listener_that_is_gone_is_told_of_by_begin(bench: Bench, host: str) -> None:
    address = bench.listener.address
    bench.listener.close()
    bench.tethers.open("d", TetherAddress(host, address.port, address.token))
    with pytest.raises(BatonError, match="tells it of KV writes is broken") as caught:
        bench.until(lambda: bench.tethers.begin("d", "a"))
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_a_listener_that_goes_away_is_noticed_before_the_next_write(bench: Bench) -> None:
    bench.connect()
    assert bench.tethers.begin("d", "a")
    bench.listener.close()
    with pytest.raises(BatonError, match="broken"):
        bench.until(lambda: not bench.tethers.begin("d", "a"))
    bench.tethers.end("d", "a")  # too late to be heard, and no reason to fail


def test_somebody_else_at_the_address_is_not_taken_for_the_worker(bench: Bench) -> None:
    address = bench.listener.address
    bench.tethers.open("d", TetherAddress(address.host, address.port, b"x" * TOKEN_BYTES))
    with pytest.raises(BatonError, match="somebody else answers"):
        bench.until(lambda: bench.tethers.begin("d", "a"))


@pytest.mark.parametrize("nonsense", [b"x" * FRAME_BYTES, b"\x00" * 1000])
def test_nonsense_ends_a_connection_that_has_begun_nothing(bench: Bench, nonsense: bytes) -> None:
    sock = bench.raw()
    sock.sendall(nonsense)
    bench.until(lambda: not bench.listener._connections)
    bench.connect()  # others are served


def test_nonsense_does_not_end_what_has_begun(bench: Bench) -> None:
    """Its process may write still, whatever else is wrong with it."""
    sock = bench.raw()
    sock.sendall(BEGIN + key_of("a") + b"nonsense" * 100 + BEGIN + key_of("b"))
    bench.until(bench.is_written("a"))
    for _ in range(3):
        sock.sendall(b"E" + key_of("a"))
        bench.listener.poll()
    assert bench.listener.writing("a")
    assert not bench.listener.writing("b")
    sock.close()
    bench.until(lambda: not bench.listener._connections)
    bench.now_s += LINGER_S
    bench.until(bench.is_free("a"))


def test_frames_in_pieces_are_put_together(bench: Bench) -> None:
    sock = bench.raw()
    for byte in BEGIN + key_of("a") + BEGIN + key_of("b"):
        sock.sendall(bytes([byte]))
        bench.listener.poll()
    bench.until(bench.is_written("b"))
    assert bench.listener.writing("a")


def test_connections_and_grants_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(listener_module, "MAX_BEGUN", 3)
    first, _ = bench.raw(), bench.raw()
    third = socket.create_connection((bench.listener.address.host, bench.listener.address.port), timeout=10)
    bench.socks.append(third)
    bench.until(lambda: len(bench.listener._connections) == 2)
    bench.listener.poll()
    assert third.recv(1) == b""  # not greeted, so that it begins nothing
    first.sendall(b"".join(BEGIN + key_of(str(number)) for number in range(5)))
    bench.until(bench.is_written("2"))
    assert not bench.listener.writing("3")


def test_a_listener_that_does_not_read_holds_writers_back_and_loses_no_word(bench: Bench) -> None:
    bench.connect()
    count = 0
    while bench.tethers.begin("d", f"g{count}"):
        assert count < 1_000_000, "a full connection does not say so"
        bench.tethers.end("d", f"g{count}")
        count += 1
    bench.until(lambda: bench.tethers.begin("d", f"g{count}"))
    bench.until(bench.is_written(f"g{count}"))
    assert sum(bench.listener._writers.values()) == 1
