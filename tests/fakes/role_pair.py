"""A prefill and a decode role in one process, joined by the in-process connector, and what tests ask of them."""

import itertools
import time
from pathlib import Path

import msgspec
import pytest

from baton.types import KvEndpoint, Role, SamplingParams, WorkerRef
from engine.config import CacheConfig, EngineConfig, LeaseConfig, SchedulerConfig
from engine.context import EngineContext
from engine.messages import (
    AddLocal,
    AddPrefill,
    Event,
    Finished,
    Granted,
    Reserve,
    Tokens,
)
from engine.roles.base import EngineRole
from engine.roles.decode import DecodeRole
from engine.roles.local import LocalRole
from engine.roles.prefill import PrefillRole
from kv_transfer.base import PoolRegion
from kv_transfer.inproc import Fault, InprocNetwork, InprocReceiver, InprocSender

PROMPT = tuple(range(10, 57))  # 47 tokens: 5 full blocks of 8 and a partial one
BLOCK = 8
GREEDY = SamplingParams(temperature=0, max_tokens=6)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=1234, max_tokens=6)


STEPS = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8)
# Times that no test lives through, but moves the clock over: a slow machine must not end a lease or a quarantine.
DECODE_LEASE = LeaseConfig(lease_s=600.0, longest_write_s=200.0, clock_margin_s=0.05)
PREFILL_LEASE = LeaseConfig(longest_write_s=5.0, clock_margin_s=0.05)


def make_context(
    folder: Path,
    role: Role,
    events: list[Event],
    blocks: int = 40,
    lease: LeaseConfig = DECODE_LEASE,
    incarnation: str = "life-1",
    steps: SchedulerConfig = STEPS,
    swap_space_bytes: int = 1 << 20,
    device: str = "cpu",
) -> EngineContext:
    block_bytes = 2 * 2 * 2 * BLOCK * 16 * 4  # kv heads, layers, keys and values, tokens, dim, float32
    config = EngineConfig(
        model_path=str(folder),
        role=role,
        worker=WorkerRef(role.value, incarnation),
        connector="inproc",
        device=device,
        max_model_len=128,
        cache=CacheConfig(BLOCK, blocks * block_bytes, swap_space_bytes=swap_space_bytes),
        scheduler=steps,
        lease=lease,
    )
    return EngineContext(config, events.extend)


def region(context: EngineContext) -> PoolRegion:
    pool = context.runner.pool
    return PoolRegion(pool.data_ptr(), pool.shape[0], context.runner.layout.block_bytes)


class Clock:
    """Moves both of the process's clocks forward without waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_ns = 0
        time_ns, monotonic = time.time_ns, time.monotonic
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() + self._ahead_ns)
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self._ahead_ns / 1e9)

    def skip(self, seconds: float) -> None:
        self._ahead_ns += int(seconds * 1e9)


class RecordingSender(InprocSender):
    """Keeps what was connected, disconnected and posted, by peer id."""

    def __init__(self, context: EngineContext, network: InprocNetwork) -> None:
        super().__init__(region(context), context.config.worker.name, network)
        self.connected: list[str] = []
        self.disconnected: list[str] = []
        self.posted: list[str] = []

    def connect(self, peer_id: str, endpoint: KvEndpoint) -> int:
        if peer_id not in self._peers:
            self.connected.append(peer_id)
        return super().connect(peer_id, endpoint)

    def disconnect(self, peer_id: str) -> None:
        self.disconnected.append(peer_id)
        super().disconnect(peer_id)

    def post(self, peer_id: str, *args: object) -> int:
        self.posted.append(peer_id)
        return super().post(peer_id, *args)  # type: ignore[arg-type]


class Pair:
    """One prefill and one decode role joined by a network that can fail."""

    def __init__(
        self,
        folder: Path,
        decode_blocks: int = 40,
        lease_s: float = DECODE_LEASE.lease_s,
        prefill_lease: LeaseConfig = PREFILL_LEASE,
    ) -> None:
        self.network = InprocNetwork()
        self.prefill_events: list[Event] = []
        self.decode_events: list[Event] = []
        prefill = make_context(folder, Role.PREFILL, self.prefill_events, lease=prefill_lease)
        self.sender = RecordingSender(prefill, self.network)
        self.prefill = PrefillRole(prefill, self.sender)
        self._folder = folder
        self._decode_blocks = decode_blocks
        self._lease = LeaseConfig(lease_s, DECODE_LEASE.longest_write_s, DECODE_LEASE.clock_margin_s)
        self.start_decode("life-1")

    def start_decode(self, incarnation: str) -> None:
        """A decode worker under the same name, which knows nothing of an earlier one; that one is left as it is."""
        context = make_context(
            self._folder, Role.DECODE, self.decode_events, self._decode_blocks, self._lease, incarnation
        )
        receiver = InprocReceiver(region(context), "decode", self.network)
        self.decode = DecodeRole(context, receiver, lambda: RecordingSender(context, self.network))

    def pump(self, rounds: int = 60) -> None:
        for _ in range(rounds):
            for role in (self.prefill, self.decode):
                turn(role)

    def reserve(self, name: str, prompt: tuple[int, ...] = PROMPT, sampling: SamplingParams = GREEDY) -> Granted:
        self.decode.handle(Reserve(name, 1, prompt, sampling))
        self.decode.context.flush()
        (granted,) = of(self.decode_events, name, Granted)
        return granted

    def start(self, name: str, prompt: tuple[int, ...] = PROMPT, sampling: SamplingParams = GREEDY) -> Granted:
        granted = self.reserve(name, prompt, sampling)
        self.add_prefill(name, granted, prompt, sampling)
        return granted

    def add_prefill(
        self, name: str, granted: Granted, prompt: tuple[int, ...] = PROMPT, sampling: SamplingParams = GREEDY
    ) -> None:
        self.prefill.handle(AddPrefill(name, 1, prompt, sampling, granted.grant))

    def tokens(self, name: str) -> list[int]:
        return token_ids(self.prefill_events, name) + token_ids(self.decode_events, name)

    def close(self) -> None:
        """At the end of a test, which may have left requests open, but no block without an owner."""
        for role in (self.prefill, self.decode):
            assert role.check_integrity() == []
            role.close()

    def assert_at_rest(self) -> None:
        """Nothing is held, nothing is lost."""
        for role in (self.prefill, self.decode):
            assert role.check_integrity() == []
            stats = role.stats()
            assert (stats.blocks.active, stats.blocks.quarantined, stats.grants, stats.running, stats.waiting) == (
                0,
            ) * 5
            assert stats.blocks.free + stats.blocks.cached == stats.blocks.total


def turn(role: EngineRole) -> bool:
    """One turn of the engine core's loop; whether it computed."""
    role.poll()
    role.context.flush()
    computed = role.step()
    role.context.flush()
    return computed


def of(events: list[Event], name: str, kind: type) -> list:
    return [event for event in events if isinstance(event, kind) and event.request_id == name]


def token_ids(events: list[Event], name: str) -> list[int]:
    return [token for event in of(events, name, Tokens) for token in event.token_ids]


def local_tokens(folder: Path, prompt: tuple[int, ...], sampling: SamplingParams) -> list[int]:
    """What one worker answers that plans no step before the one before has ended."""
    events: list[Event] = []
    steps = msgspec.structs.replace(STEPS, overlap_steps=False)
    role = LocalRole(make_context(folder, Role.AGGREGATED, events, steps=steps))
    role.handle(AddLocal("local", 1, prompt, sampling))
    for _ in range(60):
        turn(role)
    assert of(events, "local", Finished)
    return token_ids(events, "local")


def inject(pair: Pair, nth_write: int, fault: Fault) -> None:
    """The `nth_write`-th write from now on goes wrong."""
    writes = itertools.count()
    pair.network.choose_fault = lambda write: fault if next(writes) == nth_write else None
