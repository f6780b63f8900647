"""Framing between a service and its engine core: length-prefixed msgpack lists of messages over one Unix stream socket.

A frame is a 4-byte little-endian length and that many bytes of msgpack. The first frame from the service holds the
`EngineConfig`; all others hold lists of `Command` (to the core) or of `Event` (to the service).
"""

import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence

import msgspec

from engine.config import EngineConfig
from engine.messages import Command, Event

MAX_FRAME_BYTES = 256 << 20
_READ_BYTES = 256 << 10
_HEADER = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(list[Command])
_event_decoder = msgspec.msgpack.Decoder(list[Event])
_config_decoder = msgspec.msgpack.Decoder(EngineConfig)


def encode_frame(messages: Sequence[Command] | Sequence[Event]) -> bytes:
    """One frame with all of `messages`, in order. Raises ValueError above MAX_FRAME_BYTES."""
    return _framed(_encoder.encode(messages))


def encode_config(config: EngineConfig) -> bytes:
    """The service's first frame."""
    return _framed(_encoder.encode(config))


def decode_config(payload: bytes) -> EngineConfig:
    """The inverse of `encode_config`, without the length. Raises ValueError when it is no EngineConfig."""
    return _config_decoder.decode(payload)


def decode_commands(payload: bytes) -> list[Command]:
    """A frame's payload on the core's side. Raises ValueError when it is no list of commands."""
    return _command_decoder.decode(payload)


def decode_events(payload: bytes) -> list[Event]:
    """A frame's payload on the service's side. Raises ValueError when it is no list of events."""
    return _event_decoder.decode(payload)


def _framed(payload: bytes) -> bytes:
    _check_size(len(payload))
    return _HEADER.pack(len(payload)) + payload


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_FRAME_BYTES:
        raise ValueError(f"got a frame of {num_bytes} bytes, expected at most {MAX_FRAME_BYTES}")


class FrameBuffer:
    """Cuts a byte stream into frames, however the bytes arrive."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Appends what was read."""
        self._data += data

    def frames(self) -> Iterator[bytes]:
        """Takes out the payload of each complete frame. Raises ValueError at a length above MAX_FRAME_BYTES."""
        while len(self._data) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._data)
            _check_size(length)
            end = _HEADER.size + length
            if len(self._data) < end:
                return
            payload = bytes(memoryview(self._data)[_HEADER.size : end])
            del self._data[:end]
            yield payload


class CoreChannel:
    """The core's end. Sending never waits: what the socket does not take stays here and goes out at the next call."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes `sock` over: makes it non-blocking, and closes it in `close`."""
        self._sock = sock
        self._sock.setblocking(False)
        self._in = FrameBuffer()
        self._out = bytearray()
        self._peer_gone = False

    def fileno(self) -> int:
        """For waiting on this and something else at once."""
        return self._sock.fileno()

    def receive_config(self, timeout_s: float = 60.0) -> EngineConfig:
        """The service's first frame; to be called once, before `receive`.

        Raises:
            EOFError: the peer is gone, or silent for `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            for payload in self._in.frames():
                return decode_config(payload)
            if not self._wait(deadline_s):
                raise EOFError(f"got no configuration from the service within {timeout_s} s")
            self._read()

    def receive(self, timeout_s: float) -> list[Command]:
        """All commands of all complete frames; [] when none is complete within `timeout_s`. 0 does not wait.

        Raises:
            EOFError: the peer is gone and all that it sent was given out.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._write()
            if self._wait(deadline_s if timeout_s > 0 else None):
                self._read()
            commands = [command for payload in self._in.frames() for command in decode_commands(payload)]
            if commands or time.monotonic() >= deadline_s:
                return commands

    def send(self, events: list[Event]) -> None:
        """Sends a batch in one frame; an empty one is dropped.

        Raises:
            EOFError: the peer is gone, or has left MAX_FRAME_BYTES unread.
        """
        if events:
            self._out += encode_frame(events)
        self._write()

    def close(self, flush_s: float = 1.0) -> None:
        """Sends what is left, waiting at most `flush_s` for the peer to take it, and closes. Idempotent."""
        if self._sock.fileno() < 0:
            return
        deadline_s = time.monotonic() + flush_s
        while self._out and not self._peer_gone and (left_s := deadline_s - time.monotonic()) > 0:
            select.select([], [self._sock], [], left_s)
            try:
                self._write()
            except EOFError:
                break  # nobody is left to tell
        self._sock.close()

    def _wait(self, deadline_s: float | None) -> bool:
        """Until there is something to read; sends what is left meanwhile. None: only looks."""
        while True:
            left_s = 0.0 if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            poll = select.poll()
            poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
            ready = poll.poll(left_s * 1000)
            if not ready:
                return False
            if ready[0][1] & ~select.POLLOUT:
                return True
            self._write()
            if deadline_s is None:
                return False

    def _read(self) -> None:
        """Drains the socket into the frame buffer."""
        if self._peer_gone:
            raise EOFError("the service has closed its end")
        received = 0
        while True:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self._peer_gone = True
                if received == 0:
                    raise EOFError("the service has closed its end")
                return
            received += len(data)
            self._in.feed(data)

    def _write(self) -> None:
        while self._out:
            try:
                sent = self._sock.send(self._out)
            except BlockingIOError:
                if len(self._out) > MAX_FRAME_BYTES:
                    raise EOFError(f"the service has left {len(self._out)} bytes unread; it is stuck") from None
                return
            except (BrokenPipeError, ConnectionResetError) as error:
                self._peer_gone = True
                self._out.clear()
                raise EOFError("the service has closed its end") from error
            del self._out[:sent]
