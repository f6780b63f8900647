"""What one request adds to the gateway's metrics, when it has several answers or only a burst in the end."""

from collections.abc import Callable

import pytest

from baton.rpc import inference_pb2, sampling_pb2
from baton.telemetry.exposition import Metrics
from gateway.config import Slo
from gateway.metrics import GatewayMetrics, RequestFigures

STOP, LENGTH = sampling_pb2.FINISH_REASON_STOP, sampling_pb2.FINISH_REASON_LENGTH
Response = inference_pb2.GenerateResponse


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    moment = [0.0]
    monkeypatch.setattr("gateway.metrics.perf_counter", lambda: moment[0])

    def move(to_s: float) -> None:
        moment[0] = to_s

    return move


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def figures(metrics: Metrics, now_s: Callable[[float], None]) -> RequestFigures:
    return RequestFigures(GatewayMetrics(metrics, Slo(ttft_s=0.5, itl_s=0.1)))


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"baton_gateway_{name}", labels)


def end(index: int, reason: int) -> Response:
    usage = sampling_pb2.Usage(prompt_tokens=40, completion_tokens=2, cached_prompt_tokens=16)
    return Response(index=index, finish_reason=reason, usage=usage)


def test_gaps_are_those_of_each_answer_and_the_prompt_counts_once(
    metrics: Metrics, figures: RequestFigures, now_s: Callable[[float], None]
) -> None:
    for at_s, index in ((0.4, 0), (0.45, 1), (0.5, 0), (0.65, 1)):
        now_s(at_s)
        figures.seen([Response(index=index, token_ids=[7])])
    figures.seen([end(1, STOP)])
    figures.seen([end(0, LENGTH)])
    figures.succeed()
    figures.end()
    figures.end()
    assert value(metrics, "time_to_first_token_seconds_sum") == pytest.approx(0.4)
    assert value(metrics, "inter_token_latency_seconds_count") == 2
    assert value(metrics, "inter_token_latency_seconds_sum") == pytest.approx(0.1 + 0.2)
    assert value(metrics, "output_tokens_total") == 4
    assert value(metrics, "prompt_tokens_total", source="cached") == 16
    assert value(metrics, "prompt_tokens_total", source="computed") == 24
    assert value(metrics, "slo_requests_total", slo="ttft", met="true") == 1
    assert value(metrics, "slo_requests_total", slo="itl", met="false") == 1  # 0.15 s in the mean
    assert value(metrics, "requests_total", outcome="length") == 1
    assert value(metrics, "requests_total", outcome="cancelled") == value(metrics, "requests_running") == 0


def test_what_comes_at_once_has_no_gaps_to_be_judged_by(
    metrics: Metrics, figures: RequestFigures, now_s: Callable[[float], None]
) -> None:
    now_s(0.7)
    figures.seen([Response(token_ids=[7]), Response(token_ids=[8]), end(0, STOP)])
    figures.succeed()
    figures.end()
    assert value(metrics, "inter_token_latency_seconds_count") == 0
    assert value(metrics, "output_tokens_total") == 2
    assert value(metrics, "slo_requests_total", slo="ttft", met="false") == 1
    assert [value(metrics, "slo_requests_total", slo="itl", met=met) for met in ("true", "false")] == [0, 0]
