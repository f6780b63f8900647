"""Routing by longest prefix, then load; and what is said when workers are missing."""

from dataclasses import dataclass, field

import pytest

from baton.block_hash import block_hashes
from baton.directory.base import WorkerRecord
from baton.errors import BatonError, ErrorCode
from baton.types import Role, WorkerRef
from gateway.config import Limits
from gateway.no_route import Gone
from gateway.router import Apart, Decision, Local, LongestPrefix
from tests.fakes.workers import FakeDirectory

PROMPT = list(range(100))


@dataclass
class StubWorker:
    """What a router sees of a worker."""

    name: str
    role: Role
    in_flight: int = 0
    avoided: bool = False
    block_size: int = 16
    kv_dtype: str = "float32"

    def __post_init__(self) -> None:
        self.ref = WorkerRef(self.name, "1")
        self.record = WorkerRecord(self.ref, self.role, "", "m", "f", self.block_size, 4096, 100, self.kv_dtype)


@dataclass
class StubPool:
    """A pool whose directory learns of `late` workers at a refresh."""

    all: list[StubWorker]
    late: list[StubWorker] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)

    def workers(self, role: Role) -> list[StubWorker]:
        return sorted((worker for worker in self.all if worker.role is role), key=lambda worker: worker.name)

    async def refresh(self) -> None:
        self.all += self.late

    def recently_gone(self) -> list[Gone]:
        return self.gone


async def decide(workers: list[StubWorker], owned: dict[str, int] | None = None, **options) -> Decision:
    directory = FakeDirectory(
        owned={WorkerRef(name, "1"): blocks for name, blocks in (owned or {}).items()},
        down=options.get("down", False),
        lookup_s=options.get("lookup_s", 0.0),
    )
    pool = StubPool(list(workers), options.get("late", []), options.get("gone", []))
    router = LongestPrefix(pool, directory, "f", Limits(prefix_lookup_s=0.05))
    return await router.decide(PROMPT, {WorkerRef(name, "1") for name in options.get("full", ())})


def names(decision: Decision) -> tuple[str, ...]:
    return tuple(worker.name for worker in decision.plan.workers)


P1, P2 = StubWorker("p1", Role.PREFILL), StubWorker("p2", Role.PREFILL)
D1, D2 = StubWorker("d1", Role.DECODE), StubWorker("d2", Role.DECODE)
A1, A2 = StubWorker("a1", Role.AGGREGATED), StubWorker("a2", Role.AGGREGATED, in_flight=1)


async def test_longest_prefix_wins_over_load() -> None:
    busy = StubWorker("p2", Role.PREFILL, in_flight=9)
    decision = await decide([P1, busy, D1, D2], {"p2": 3, "p1": 2, "d2": 1})
    assert names(decision) == ("p2", "d2")
    assert isinstance(decision.plan, Apart)
    assert decision.plan.cached_blocks == 3
    assert decision.chosen == "prefill p2, decode d2"
    assert "p2 owns 3 blocks, 9 in flight" in decision.why
    assert decision.runner_up == "p2 owns 3 blocks, 9 in flight; d1 owns 0 blocks, 0 in flight"


async def test_load_breaks_ties() -> None:
    busy_prefill, busy_decode = StubWorker("p1", Role.PREFILL, in_flight=1), StubWorker("d1", Role.DECODE, in_flight=1)
    assert names(await decide([busy_prefill, P2, busy_decode, D2], {"p1": 2, "p2": 2})) == ("p2", "d2")


async def test_pair_goes_before_aggregated() -> None:
    assert names(await decide([A1, P1, D1], {"a1": 6})) == ("p1", "d1")


@pytest.mark.parametrize("extra", [[], [P1], [D1]])
async def test_aggregated_serves_alone(extra: list[StubWorker]) -> None:
    decision = await decide([A2, A1, *extra])
    assert isinstance(decision.plan, Local)
    assert names(decision) == ("a1",)
    assert decision.runner_up.startswith("a2 owns 0 blocks, 1 in flight")


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ([], "no prefill worker and no decode worker is registered for this model (no workers at all)"),
        ([P1], "no decode worker is registered for this model (only prefill workers)"),
    ],
)
async def test_missing_roles(workers: list[StubWorker], message: str) -> None:
    with pytest.raises(BatonError) as caught:
        await decide(workers)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.message.startswith(message)
    assert caught.value.retry_after_s is not None


async def test_a_worker_that_has_just_left_is_named() -> None:
    gone = [Gone("p9", Role.PREFILL, 1.0), Gone("d9", Role.DECODE, 3.2)]
    with pytest.raises(BatonError) as caught:
        await decide([P1], gone=gone)
    assert caught.value.message.startswith(
        "no decode worker serves this model now: decode worker d9 has stopped or died 3 s ago"
    )


async def test_a_decode_worker_prefills_when_no_prefill_worker_can() -> None:
    alone = await decide([D1, D2], {"d2": 2})
    assert isinstance(alone.plan, Local)
    assert names(alone) == ("d2",)
    lost = StubWorker("p1", Role.PREFILL, avoided=True)
    assert names(await decide([lost, D1])) == ("d1",)
    assert names(await decide([P1, D1], full=["p1"])) == ("d1",)
    assert names(await decide([P1, P2, D1], full=["p1"])) == ("p2", "d1")
    assert names(await decide([P1, D1, A1], full=["p1"])) == ("a1",)
    # One that has refused or failed the request does not get more of it.
    assert names(await decide([lost, D1], full=["d1"])) == ("p1", "d1")


async def test_worker_that_registered_just_now_is_found() -> None:
    assert names(await decide([P1], late=[D1])) == ("p1", "d1")


async def test_avoided_and_full_workers_come_last() -> None:
    lost = StubWorker("p1", Role.PREFILL, avoided=True)
    assert names(await decide([lost, P2, D1, D2], {"p1": 6, "d1": 6}, full=["d1"])) == ("p2", "d2")
    assert names(await decide([lost, D1], full=["d1"])) == ("p1", "d1")


@pytest.mark.parametrize("options", [{"down": True}, {"lookup_s": 5.0}])
async def test_directory_trouble_is_a_miss(options: dict) -> None:
    decision = await decide([P1, P2, D1], {"p2": 5}, **options)
    assert names(decision) == ("p1", "d1")


async def test_each_block_size_gets_its_own_hashes() -> None:
    asked: list[tuple[int, list[str]]] = []

    class Recorder(FakeDirectory):
        async def longest_prefixes(self, hashes, workers):
            asked.append((len(hashes), [worker.name for worker in workers]))
            assert list(hashes) in [block_hashes("f", PROMPT, size) for size in (16, 32)]
            return {}

    large = StubWorker("a1", Role.AGGREGATED, block_size=32)
    await LongestPrefix(StubPool([P1, D1, large]), Recorder(), "f", Limits()).decide(PROMPT)
    assert asked == [(6, ["p1", "d1"]), (3, ["a1"])]


@pytest.mark.parametrize("other", [{"block_size": 32}, {"kv_dtype": "bfloat16"}])
async def test_a_pair_can_exchange_kv(other: dict) -> None:
    """Nothing else counts: not the longest prefix, not the load."""
    prefill, busy = StubWorker("p2", Role.PREFILL, **other), StubWorker("d2", Role.DECODE, in_flight=9, **other)
    assert names(await decide([P1, D1, busy], {"d2": 6})) == ("p1", "d1")
    decision = await decide([P1, prefill, D1, busy], {"p2": 2})
    assert names(decision) == ("p2", "d2")
    # Neither p1 nor d1 could have taken the other's place.
    assert decision.runner_up == "p1 owns 0 blocks, 0 in flight; d1 owns 0 blocks, 0 in flight"
    full = await decide([P1, prefill, D1, busy], {"p2": 2}, full=["d2"])
    assert names(full) == ("p1", "d1")


async def test_prefixes_are_compared_in_tokens() -> None:
    large = {"block_size": 32}
    workers = [P1, StubWorker("p2", Role.PREFILL, **large), D1, StubWorker("d2", Role.DECODE, **large)]
    assert names(await decide(workers, {"p1": 3, "p2": 2})) == ("p2", "d2")


async def test_workers_that_cannot_exchange_kv_are_named() -> None:
    other = StubWorker("d2", Role.DECODE, block_size=32, kv_dtype="bfloat16")
    with pytest.raises(BatonError) as caught:
        await decide([P1, other])
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.message == (
        "no prefill worker can hand KV over to a decode worker: prefill p1 has blocks of 16 tokens in float32, decode "
        "d2 has blocks of 32 tokens in bfloat16; start them with the same --block-size and --dtype"
    )
    assert names(await decide([P1, other, A1])) == ("a1",)
    assert names(await decide([P1, other], late=[D1])) == ("p1", "d1")
