"""Frames survive any cutting of the byte stream, and a core's end of the socket never waits when it must not."""

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.types import KvLayout, Role, SamplingParams, WorkerRef
from engine import wire
from engine.config import CacheConfig, EngineConfig
from engine.messages import Abort, AddLocal, CacheChanged, GetStats, Ready, Release, Shutdown, Tokens

CONFIG = EngineConfig("/models/m", Role.DECODE, WorkerRef("d0", "i0"), cache=CacheConfig(kv_cache_bytes=1 << 20))
COMMANDS = [
    AddLocal("r1", 2, (1, 2, 3), SamplingParams(temperature=0.5, logit_bias={3: -1.0}, num_logprobs=2)),
    Release("g1", fenced=True),
    Abort("r1", 2),
    GetStats(7, check=True),
    Shutdown(),
]
LAYOUT = KvLayout(2, 2, 8, 16, "float32", "feedc0de")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, wire.CoreChannel]]:
    ours, theirs = socket.socketpair()
    channel = wire.CoreChannel(theirs)
    yield ours, channel
    ours.close()
    channel.close(flush_s=0)


@given(cuts=st.lists(st.integers(1, 40), max_size=40))
def test_frames_survive_any_cutting(cuts: list[int]) -> None:
    data = wire.encode_frame(COMMANDS[:2]) + wire.encode_frame([]) + wire.encode_frame(COMMANDS[2:])
    buffer, payloads = wire.FrameBuffer(), []
    for size in [*cuts, len(data)]:
        buffer.feed(data[:size])
        data = data[size:]
        payloads += list(buffer.frames())
    assert [wire.decode_commands(payload) for payload in payloads] == [COMMANDS[:2], [], COMMANDS[2:]]


def test_events_round_trip() -> None:
    events = [Ready(LAYOUT, 10, 512), Tokens("r", 0, 1, (5, 6)), CacheChanged((b"\0" * 16,), (b"\xff" * 16,))]
    assert wire.decode_events(wire.encode_frame(events)[4:]) == events


def test_a_frame_above_the_bound_is_refused() -> None:
    buffer = wire.FrameBuffer()
    buffer.feed(struct.pack("<I", wire.MAX_FRAME_BYTES + 1))
    with pytest.raises(ValueError, match="expected at most"):
        list(buffer.frames())


def test_the_configuration_comes_first(pair: tuple[socket.socket, wire.CoreChannel]) -> None:
    ours, channel = pair
    ours.sendall(wire.encode_config(CONFIG) + wire.encode_frame(COMMANDS[:1]))
    assert channel.receive_config() == CONFIG
    assert channel.receive(0) == COMMANDS[:1]


def test_all_complete_frames_are_drained_and_a_part_waits(pair: tuple[socket.socket, wire.CoreChannel]) -> None:
    ours, channel = pair
    last = wire.encode_frame(COMMANDS[3:])
    ours.sendall(wire.encode_frame(COMMANDS[:1]) + wire.encode_frame(COMMANDS[1:3]) + last[:6])
    assert channel.receive(0) == COMMANDS[:3]
    started_s = time.monotonic()
    assert channel.receive(0.05) == []
    assert time.monotonic() - started_s >= 0.05
    ours.sendall(last[6:])
    assert channel.receive(1.0) == COMMANDS[3:]


def test_the_end_comes_after_the_last_commands(pair: tuple[socket.socket, wire.CoreChannel]) -> None:
    ours, channel = pair
    ours.sendall(wire.encode_frame(COMMANDS))
    ours.close()
    assert channel.receive(0) == COMMANDS
    with pytest.raises(EOFError):
        channel.receive(0)
    with pytest.raises(EOFError):
        channel.send([Tokens("r", 0, 0, (1,))])


def test_sending_does_not_wait_for_a_slow_service(pair: tuple[socket.socket, wire.CoreChannel]) -> None:
    ours, channel = pair
    batch = [Tokens("r", 0, 0, tuple(range(100_000)))]
    for _ in range(20):
        channel.send(batch)  # far more than the socket takes
    buffer, received = wire.FrameBuffer(), []
    ours.setblocking(False)
    while len(received) < 20:
        try:
            buffer.feed(ours.recv(1 << 20))
        except BlockingIOError:
            assert channel.receive(0.001) == []  # sends what was left
        received += [wire.decode_events(payload) for payload in buffer.frames()]
    assert received == [batch] * 20


def test_close_sends_what_is_left(pair: tuple[socket.socket, wire.CoreChannel]) -> None:
    ours, channel = pair
    channel.send([Tokens("r", 0, 0, (1, 2))])
    channel.close()
    channel.close()
    assert wire.decode_events(ours.recv(4096)[4:]) == [Tokens("r", 0, 0, (1, 2))]
    assert ours.recv(1) == b""
