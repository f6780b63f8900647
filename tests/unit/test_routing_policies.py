"""Routing policies on their own: what each prefers, how `cost` learns, and that no decision depends on waiting."""

import math
import random
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from baton.directory.base import WorkerRecord
from baton.errors import BatonError, ErrorCode
from baton.types import Role, WorkerRef
from gateway.routing.base import Apart, Choice, Fleet, Policy, Query
from gateway.routing.choose import choose
from gateway.routing.cost import Cost
from gateway.routing.fit import Line, LineFit
from gateway.routing.registry import POLICY_NAMES, make_policy


@dataclass
class StubWorker:
    """What routing sees of a worker."""

    name: str
    role: Role
    in_flight: int = 0
    avoided: bool = False

    def __post_init__(self) -> None:
        self.ref = WorkerRef(self.name, "1")
        self.record = WorkerRecord(self.ref, self.role, "", "m", "f", 16, 4096, 100)


class Cluster:
    """Workers of each role, and a clock."""

    def __init__(self, prefill: int = 0, decode: int = 0, aggregated: int = 0) -> None:
        self.now_s = 0.0
        counts = ((Role.PREFILL, prefill), (Role.DECODE, decode), (Role.AGGREGATED, aggregated))
        self.workers = {
            f"{role.value[0]}{i}": StubWorker(f"{role.value[0]}{i}", role) for role, n in counts for i in range(n)
        }
        roles = [[worker for worker in self.workers.values() if worker.role is role] for role, _ in counts]
        self.fleet: Any = Fleet(*roles)

    def rank(self, policy: Policy, num_tokens: int = 1000, owned: dict[str, int] | None = None, **more: Any) -> Any:
        blocks = {self.workers[name].ref: count for name, count in (owned or {}).items()}
        query = Query(num_tokens, blocks, {self.workers[name].ref for name in more.get("last_resort", ())})
        return choose(policy, self.fleet, query), query

    def serve(self, policy: Cost, choice: Choice, query: Query, prefill_s: float, itl_s: float = 0.01, **more: Any):
        """One request from its place to its end. Runs alone."""
        claim = policy.take(choice, query)
        claim.placed()
        self.now_s += prefill_s
        claim.produced(1)
        self.now_s += 9 * itl_s
        claim.produced(9)
        claim.finished(more.get("cached", 0), more.get("moved", 0), more.get("hand_over_s", 0.0))


def names(choice: Choice) -> tuple[str, ...]:
    return tuple(worker.name for worker in choice.plan.workers)


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(BatonError, match=r"--routing-policy 'best', expected one of cost, prefix, l") as told:
        make_policy("best")
    assert told.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_trouble_comes_before_merit_in_every_policy(name: str) -> None:
    cluster, policy = Cluster(prefill=3, decode=2), make_policy(name)
    cluster.workers["p0"].avoided = True
    for _ in range(5):
        (best, *others), query = cluster.rank(policy, owned={"p0": 60, "p1": 60, "d0": 60}, last_resort=["p1", "d0"])
        assert not any(best.trouble)
        assert not {"p0", "p1", "d0"} & set(names(best))
        assert [choice.trouble for choice in others] == sorted(choice.trouble for choice in others)
        policy.take(best, query)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_one_of_each_role_is_found_and_none_is_none(name: str) -> None:
    policy = make_policy(name)
    assert choose(policy, Cluster().fleet, Query(10, {})) == []
    assert choose(policy, Cluster(prefill=1).fleet, Query(10, {})) == []
    assert names(Cluster(prefill=1, decode=1).rank(policy, 4000)[0][0])[-1] == "d0"
    assert names(Cluster(aggregated=1).rank(policy)[0][0]) == ("a0",)


def test_round_robin_takes_turns_and_forgets_who_left() -> None:
    cluster, policy = Cluster(prefill=3, decode=2), make_policy("round_robin")
    seen = []
    for _ in range(6):
        (best, *_), query = cluster.rank(policy)
        policy.take(best, query)
        seen.append(names(best))
    assert [prefill for prefill, _ in seen] == ["p0", "p1", "p2"] * 2
    assert [decode for _, decode in seen] == ["d0", "d1"] * 3
    for life in range(100):
        cluster.workers["p0"].ref = WorkerRef("p0", str(life))
        (best, *_), query = cluster.rank(policy)
        policy.take(best, query)
    assert len(policy._taken) < 30  # type: ignore[attr-defined]


def test_random_spreads_and_least_loaded_fills_up() -> None:
    cluster = Cluster(prefill=4, decode=1)
    assert len({names(cluster.rank(make_policy("random"))[0][0]) for _ in range(50)}) == 4
    for name, load in (("p0", 2), ("p1", 1), ("p2", 3), ("p3", 1)):
        cluster.workers[name].in_flight = load
    assert names(cluster.rank(make_policy("least_loaded"), owned={"p2": 60})[0][0]) == ("p1", "d0")


def test_cost_weighs_a_prefix_against_a_queue() -> None:
    cluster = Cluster(prefill=2, decode=1)
    policy = Cost(lambda: cluster.now_s)
    cluster.workers["d0"].in_flight = 3  # would be held up by a prompt there
    (best, *_), query = cluster.rank(policy, 1600, {"p1": 51})
    assert names(best) == ("p1", "d0")
    policy.take(best, query)
    (best, *_), query = cluster.rank(policy, 1600, {"p1": 51})
    assert names(best) == ("p1", "d0")  # to wait for 784 tokens and to compute as many is less than 1,600 on p0
    policy.take(best, query)
    (best, runner_up, *_), _ = cluster.rank(policy, 1600, {"p1": 50})
    assert names(best) == ("p0", "d0")
    assert best.price_s is not None
    assert runner_up.price_s >= best.price_s > 0


def test_cost_learns_who_is_slow() -> None:
    cluster = Cluster(prefill=2, decode=1)
    policy = Cost(lambda: cluster.now_s)
    for tokens in (500, 1000, 2000, 4000) * 5:
        query = Query(tokens, {})
        for prefill, s_per_token in zip(cluster.fleet.prefill, (1e-3, 1e-4), strict=True):
            choice = Choice(Apart(prefill, cluster.fleet.decode[0], 0), (False, False), (0.0,), 0.0)
            cluster.serve(policy, choice, query, 0.05 + tokens * s_per_token, moved=tokens, hand_over_s=0.002)
    cluster.workers["d0"].in_flight = 4
    (best, *_), _ = cluster.rank(policy, 3000)
    assert names(best)[0] == "p1"
    (best, *_), _ = cluster.rank(policy, 3000, {"p0": 187})  # all but 8 of its tokens: 0.06 s instead of 0.35
    assert names(best)[0] == "p0"


def test_cost_goes_apart_for_long_prompts_and_stays_on_decode_for_short_ones() -> None:
    cluster = Cluster(prefill=1, decode=1)
    policy = Cost(lambda: cluster.now_s)
    cluster.workers["d0"].in_flight = 4
    (best, runner_up, *_), _ = cluster.rank(policy, 4000)
    assert (names(best), names(runner_up)) == (("p0", "d0"), ("d0",))
    # The same prompt once decode has it nearly all: nothing to hand over is worth a second worker.
    assert names(cluster.rank(policy, 4000, {"d0": 249})[0][0]) == ("d0",)


def test_cost_stays_on_decode_while_prefill_is_busy() -> None:
    cluster = Cluster(prefill=1, decode=2)
    policy = Cost(lambda: cluster.now_s)
    first, query = cluster.rank(policy, 4000)
    claims = []
    chosen = []
    for _ in range(6):
        (best, *_), query = cluster.rank(policy, 4000)
        chosen.append(names(best))
        claims.append(policy.take(best, query))
    assert ("d0",) in chosen
    for claim in claims:
        claim.dropped()
        claim.dropped()
    again, _ = cluster.rank(policy, 4000)
    assert [(names(choice), choice.price_s) for choice in again] == [
        (names(choice), choice.price_s) for choice in first
    ]


def test_a_claim_settles_its_books_however_it_ends() -> None:
    cluster, chance = Cluster(prefill=2, decode=2, aggregated=1), random.Random(1)
    policy = Cost(lambda: cluster.now_s)
    claims = []
    for _ in range(200):
        choices, query = cluster.rank(policy, chance.randint(1, 5000))
        claims.append(policy.take(chance.choice(choices), query))
    for claim in claims:
        end = chance.randrange(4)
        if end:
            claim.placed()
        if end > 1:
            claim.produced(1)
        claim.finished(0, 10, 0.1) if end > 2 else claim.dropped()
        claim.dropped()
    for model in policy._models.values():
        assert model.queued_tokens == 0


def test_a_fit_finds_base_and_slope_and_forgets() -> None:
    fit = LineFit(Line(0.01, 1e-4), 256)
    for x in (100, 200, 400, 800, 1600) * 4:
        fit.add(x, 0.1 + x * 1e-3)
    assert fit.line == pytest.approx((0.1, 1e-3), rel=0.01)
    for x in (100, 200, 400, 800, 1600) * 40:
        fit.add(x, 0.2 + x * 3e-3)
    assert fit.line == pytest.approx((0.2, 3e-3), rel=0.01)


def test_one_observation_far_from_the_prior_is_believed() -> None:
    fit = LineFit(Line(0.01, 1e-4), 256)
    fit.add(500, 2.5)
    assert 1e-3 < fit.line.slope_s < 5e-3


def test_one_outlier_does_not_count_for_much() -> None:
    fit = LineFit(Line(0.01, 1e-4), 256)
    for x in (100, 200, 400, 800) * 4:
        fit.add(x, 0.01 + x * 1e-4)
    fit.add(400, 3600.0)
    for x in (100, 200, 400, 800):
        fit.add(x, 0.01 + x * 1e-4)
    assert fit.line.at(500) < 0.12


def test_no_input_makes_a_fit_negative_or_nan() -> None:
    chance = random.Random(2)
    odd = [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300, 1e12]
    for _ in range(200):
        fit = LineFit(Line(0.01, 1e-4), 256)
        for _ in range(80):
            fit.add(chance.choice([*odd[:5], chance.random() * 1e5]), chance.choice([*odd, chance.random()]))
            assert all(math.isfinite(part) and part >= 0 for part in fit.line)


def test_deciding_needs_neither_grpc_nor_redis_nor_asyncio() -> None:
    code = "import sys, gateway.routing.registry, gateway.routing.choose; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"grpc", "redis", "asyncio", "torch"} & set(loaded)
