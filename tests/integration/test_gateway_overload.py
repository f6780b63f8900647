"""A gateway that is asked for more than its workers can do: who waits, who is refused, and how clients are told."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from baton.rpc import inference_pb2
from baton.types import Role
from gateway.admission.base import AdmissionConfig
from gateway.config import GatewayConfig
from tests.fakes.gateway_stack import ANSWER, PROMPT, Stack, eventually, ids_of, running_stack
from tests.fakes.overload import Load, phases
from tests.fakes.scrapes import Scrape
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import decode_of, hang


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers take one answer each."""

    def admission(config: GatewayConfig) -> AdmissionConfig:
        bounds = AdmissionConfig(config.max_queued, config.max_queued_per_client)
        return dataclasses.replace(bounds, initial_per_worker=1.0, max_per_worker=1.0)

    monkeypatch.setattr(GatewayConfig, "admission", property(admission))


def details(error: Any) -> tuple[str, float]:
    """Reason and seconds after which to come again."""
    status = rpc_status.from_call(error)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    return info.reason, retry.retry_delay.ToMilliseconds() / 1000


async def metric(stack: Stack, name: str, **labels: str) -> float:
    return Scrape((await stack.gateway.metrics.exposition()).decode()).value(
        f"baton_gateway_admission_{name}", **labels
    )


@pytest.mark.usefixtures("one_at_a_time")
async def test_waiting_refusal_and_the_end_of_a_wait(model: Path) -> None:
    async with running_stack(model, http_port=0, max_queued_per_client=3) as stack:
        stack.decode.script = hang
        running = stack.stream()
        await running.read()
        core = stack.gateway.admission.core
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 5}
        async with aiohttp.ClientSession() as http:
            waiting = [asyncio.create_task(stack.generate()) for _ in range(2)]
            leaving = asyncio.create_task(http.post(f"{stack.http_url}/v1/completions", json=body))
            await eventually(lambda: core.queued == 3)
            async with http.post(f"{stack.http_url}/v1/completions", json=body) as response:
                assert (response.status, int(response.headers["retry-after"]) >= 1) == (429, True)
                error = (await response.json())["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "client_queue_full")
            refused = await stack.error()
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await eventually(lambda: core.queued == 2)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        reason, retry_s = details(refused)
        assert (reason, retry_s >= 0.1) == ("CLIENT_QUEUE_FULL", True)
        assert "--max-queued-per-client" in (refused.details() or "")
        assert await metric(stack, "refusals_total", reason="client_queue_full") == 2
        stack.decode.script = decode_of(ANSWER)
        running.cancel()
        assert [ids_of(responses) for responses in await asyncio.gather(*waiting)] == [ANSWER] * 2
        await stack.quiet()
        assert (await metric(stack, "running"), await metric(stack, "queued")) == (0, 0)
        assert await metric(stack, "wait_seconds_count") == 3


@pytest.mark.usefixtures("one_at_a_time")
async def test_a_deadline_that_cannot_be_met_is_refused_at_once(model: Path) -> None:
    async with running_stack(model, http_port=0) as stack:
        stack.decode.script = decode_of(ANSWER, delay_s=0.05)
        for _ in range(10):
            await stack.generate()
        first = asyncio.create_task(stack.generate())
        await eventually(lambda: stack.decode.open_streams)
        refused = await stack.error(deadline_s=0.15)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details(refused)[0] == "DEADLINE_TOO_SHORT"
        async with aiohttp.ClientSession(headers={"X-Request-Timeout-S": "0.15"}) as http:
            body = {"model": "tiny", "prompt": PROMPT}
            async with http.post(f"{stack.http_url}/v1/completions", json=body) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (429, "deadline_too_short")
        assert not first.done()
        assert ids_of(await first) == ANSWER


@pytest.mark.usefixtures("one_at_a_time")
async def test_more_workers_are_more_places(model: Path) -> None:
    roles = (("p0", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE), ("a0", Role.AGGREGATED))
    async with running_stack(model, roles) as stack:
        await stack.generate()
        assert await metric(stack, "limit") == 3


async def test_bad_requests_take_no_place(model: Path) -> None:
    async with running_stack(model) as stack:
        for _ in range(3):
            await stack.error(model="another")
            await stack.error(tokens=inference_pb2.TokenPrompt(token_ids=[10**6]))
        assert await metric(stack, "wait_seconds_count") == 0
        assert stack.gateway.admission.core.arrived == 0


async def test_goodput_under_three_times_the_load(model: Path) -> None:
    """The short form of benchmarks/gateway/overload.py, with room for a machine that does other things, too."""
    load = Load(slots=8, service_s=0.4, deadline_s=2.0)
    calm, over = await phases(model, load, [(0.9, 2.0), (3.0, 5.0)])
    assert not [*calm.other, *over.other]
    assert over.goodput_rps >= 0.75 * load.capacity_rps
    assert over.late <= 0.1 * over.good
    assert len(over.refusal_s) > over.good  # two thirds are too many
    assert over.refusal_quantile_s(0.8) < 0.1
