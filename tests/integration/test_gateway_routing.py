"""The policy `cost` in a gateway with scripted workers: prices in the span and in metrics, and books that settle."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.types import Role
from gateway.router import PolicyRouter
from gateway.routing.cost import Cost
from tests.fakes.gateway_stack import ANSWER, FakeCollector, Stack, attributes, eventually, ids_of, running_stack
from tests.fakes.scrapes import Scrape
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import hang

ROLES = [("p0", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def receiver() -> AsyncIterator[FakeCollector]:
    receiver = FakeCollector()
    yield receiver
    await receiver.close()


def policy_of(stack: Stack) -> Cost:
    router = stack.gateway.orchestrator.placement._router
    assert isinstance(router, PolicyRouter)
    assert isinstance(router._policy, Cost)
    return router._policy


def queued(stack: Stack) -> int:
    return sum(model.queued_tokens for model in policy_of(stack)._models.values())


def occupy(stack: Stack, role: Role, num_requests: int) -> None:
    for worker in stack.gateway.pool.workers(role):
        worker.in_flight += num_requests


async def test_requests_are_priced_and_their_outcome_is_learnt(model: Path, receiver: FakeCollector) -> None:
    endpoint = await receiver.start()
    async with running_stack(model, ROLES, otlp_endpoint=endpoint, routing_policy="cost") as stack:
        for _ in range(3):
            assert ids_of(await stack.generate()) == ANSWER  # on decode: nothing there would be held up
        occupy(stack, Role.DECODE, 50)
        assert ids_of(await stack.generate()) == ANSWER
        occupy(stack, Role.DECODE, -50)
        found = Scrape((await stack.gateway.metrics.exposition()).decode())
        assert found.by("choice", "baton_gateway_routes_total") == {"apart": 1, "aggregated": 0, "decode": 3}
        assert found.value("baton_gateway_route_price_seconds_count") == 4
        assert found.value("baton_gateway_route_duration_seconds_count") == 4
        await stack.quiet()
        assert queued(stack) == 0
        assert policy_of(stack)._all_workers.num_added == 4
    routes = [attributes(span) for span in receiver.named("gateway.route")]
    assert len(routes) == 4
    for route in routes:
        assert 0 < route["baton.route.price_s"] <= route["baton.route.runner_up_price_s"]
    assert routes[0]["baton.route.why"].endswith("cheaper than two workers")
    assert routes[3]["baton.route.chosen"].startswith("prefill p0, decode d")


async def test_a_request_that_is_given_up_is_no_load(model: Path) -> None:
    async with running_stack(model, ROLES, routing_policy="cost") as stack:
        for name in ("d0", "d1"):
            stack.workers[name].decode.script = hang
        reading = asyncio.create_task(stack.generate(deadline_s=5.0))
        await eventually(lambda: queued(stack) > 0)
        reading.cancel()
        await eventually(lambda: queued(stack) == 0)
        await stack.quiet()
        assert policy_of(stack)._all_workers.num_added == 0
