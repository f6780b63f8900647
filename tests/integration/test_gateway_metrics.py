"""What the gateway counts of requests that end well, fail, are tried again or cancelled; and how it is scraped."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from baton.errors import BatonError, ErrorCode
from baton.telemetry import metrics as declared
from baton.telemetry.exposition import Metrics
from baton.telemetry.scrape_server import ScrapeServer
from baton.types import Role
from tests.fakes.gateway_stack import ANSWER, PROMPT, Stack, eventually, running_stack
from tests.fakes.scrapes import Scrape, scrape
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import hang, prefill_of

TWO_OF_EACH = [("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)]
OUTCOMES = "baton_gateway_requests_total"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model, TWO_OF_EACH) as running:
        yield running


async def figures(stack: Stack) -> Scrape:
    return Scrape((await stack.gateway.metrics.exposition()).decode())


async def test_a_request_that_ends_well(stack: Stack) -> None:
    responses = await stack.generate()
    found = await figures(stack)
    usage = responses[-1].usage
    assert found.value(OUTCOMES, outcome="length") == found.value(OUTCOMES) == 1
    assert found.value("baton_gateway_output_tokens_total") == usage.completion_tokens == len(ANSWER)
    assert found.value("baton_gateway_prompt_tokens_total", source="cached") == usage.cached_prompt_tokens
    assert found.value("baton_gateway_prompt_tokens_total") == len(PROMPT)
    assert found.value("baton_gateway_time_to_first_token_seconds_count") == 1
    assert found.value("baton_gateway_request_duration_seconds_count") == 1
    num_responses = sum(1 for response in responses if response.token_ids)
    assert found.value("baton_gateway_inter_token_latency_seconds_count") == num_responses - 1
    for objective in ("ttft", "itl"):
        assert found.value("baton_gateway_slo_requests_total", slo=objective) == 1
    assert found.by("slo", "baton_gateway_slo_threshold_seconds") == {"ttft": 2.0, "itl": 0.2}
    assert found.value("baton_hand_over_part_seconds_count", part="reserve") == 1
    assert (found.value("baton_gateway_attempts_total"), found.value("baton_gateway_retries_total")) == (1, 0)
    await stack.quiet()
    found = await figures(stack)
    assert found.value("baton_gateway_workers", role="prefill", state="in_use") == 2
    assert found.value("baton_gateway_requests_running") == found.value("baton_gateway_worker_requests") == 0


async def test_a_request_that_a_worker_fails_is_tried_again(stack: Stack) -> None:
    left = [BatonError(ErrorCode.UNAVAILABLE, "the engine core died")]

    async def script(request: Any) -> AsyncIterator[Any]:
        if left:
            raise left.pop()
        async for event in prefill_of(ANSWER)(request):
            yield event

    for name in ("p0", "p1"):
        stack.workers[name].prefill.script = script
    await stack.generate()
    found = await figures(stack)
    assert found.value(OUTCOMES, outcome="length") == 1
    assert found.value("baton_gateway_attempts_total") == 2
    assert found.value("baton_gateway_retries_total", after="unavailable") == 1


async def test_bad_and_failed_requests_differ_in_the_objectives(stack: Stack) -> None:
    await stack.error(model="another")
    found = await figures(stack)
    assert found.value(OUTCOMES, outcome="not_found") + found.value(OUTCOMES, outcome="invalid_argument") == 1
    assert found.value("baton_gateway_slo_requests_total") == 0

    async def script(request: Any) -> AsyncIterator[Any]:
        raise BatonError(ErrorCode.INTERNAL, "a bug")
        yield

    for name in ("p0", "p1"):
        stack.workers[name].prefill.script = script
    await stack.error()
    found = await figures(stack)
    assert found.value(OUTCOMES, outcome="internal") == 1
    for objective in ("ttft", "itl"):
        assert found.value("baton_gateway_slo_requests_total", slo=objective, met="false") == 1


async def test_a_client_that_leaves_counts_once_and_runs_no_more(stack: Stack) -> None:
    for name in ("d0", "d1"):
        stack.workers[name].decode.script = hang
    stream = stack.stream()
    await stream.read()
    assert (await figures(stack)).value("baton_gateway_requests_running") == 1
    stream.cancel()
    running = stack.gateway.metrics.registry.get_sample_value
    await eventually(lambda: running("baton_gateway_requests_running") == 0)
    found = await figures(stack)
    assert found.value(OUTCOMES, outcome="cancelled") == found.value(OUTCOMES) == 1
    assert found.value("baton_gateway_slo_requests_total") == 0


async def test_a_scrape_while_the_loop_is_busy_gives_what_was_known_last() -> None:
    metrics, asked, busy = Metrics(), 0, False

    async def refresh() -> None:
        nonlocal asked
        asked += 1
        if busy:
            await asyncio.Event().wait()

    gauge = metrics.gauge(declared.REDIS_UP)
    gauge.set(1)
    metrics.refresh_before_scrape(refresh)
    server = ScrapeServer(metrics, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}/metrics"
    assert (await asyncio.to_thread(scrape, url)).value("baton_redis_up") == 1
    busy = True
    assert (await asyncio.to_thread(scrape, url)).value("baton_redis_up") == 1
    assert asked == 2
    only = await asyncio.to_thread(scrape, f"{url}?name[]=baton_redis_up")
    assert {sample.name for sample in only.samples} == {"baton_redis_up"}
    with pytest.raises(BatonError, match="--metrics-port"):
        ScrapeServer(metrics, "127.0.0.1", server.port)
    await server.close()
    await server.close()
    assert not any("serve_forever" in thread.name for thread in threading.enumerate())
