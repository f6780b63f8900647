"""The figures of an answer: percentiles, gaps between tokens, what --json holds."""

import math

import msgspec
import pytest
from rich.console import Console

from baton.cli.client import Answer, _spread
from baton.cli.figures import as_json, figures_table, percentile, timings
from baton.cli.trace_view import expected_spans
from baton.rpc import inference_pb2, sampling_pb2


def answer(times: list[float], hand_over: inference_pb2.HandOver | None = None) -> Answer:
    return Answer(
        text="x",
        token_ids=list(range(len(times))),
        token_times_s=times,
        end_s=1.0,
        finish_reason="length",
        trace_id="ab" * 16,
        usage=sampling_pb2.Usage(prompt_tokens=32, completion_tokens=len(times), cached_prompt_tokens=16),
        hand_over=hand_over or inference_pb2.HandOver(),
    )


def shown(value: Answer) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(figures_table(value))
    return capture.get()


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_percentiles_are_nearest_ranks(share: float, expected: float) -> None:
    assert percentile([*range(100, 0, -1)], share) == expected
    assert math.isnan(percentile([], share))


def test_times_of_an_answer() -> None:
    assert timings(answer([0.1, 0.12, 0.16])) == {
        "ttft_ms": 100.0,
        "itl_mean_ms": 30.0,
        "itl_p50_ms": 20.0,
        "itl_p99_ms": 40.0,
        "total_ms": 1000.0,
    }


def test_too_few_tokens_have_no_times() -> None:
    assert timings(answer([]))["ttft_ms"] is None
    assert timings(answer([0.1]))["itl_p99_ms"] is None
    assert "mean -, p50 -, p99 -" in shown(answer([0.1]))


def test_tokens_of_one_message_share_its_gap() -> None:
    assert _spread(None, 0.5, 2) == [0.5, 0.5]
    assert _spread(1.0, 2.0, 4) == [1.25, 1.5, 1.75, 2.0]
    assert _spread(1.0, 2.0, 0) == []


def test_where_the_kv_went() -> None:
    moved = inference_pb2.HandOver(prefill_worker="p", decode_worker="d", blocks=2, bytes=10_000, control_us=7)
    text = shown(answer([0.1, 0.2], moved))
    assert "p → d, 2 blocks, 10,000 bytes" in text
    assert "control 7 µs" in text
    assert "32 in (16 cached), 2 out" in text
    assert "kv.transfer" in expected_spans(answer([], moved))
    one = inference_pb2.HandOver(prefill_worker="p")
    assert "prefill.compute" in expected_spans(answer([0.1], one)), "its first token was the last"
    assert "stayed on p" in shown(answer([0.1], one))
    stayed = answer([0.1], inference_pb2.HandOver(prefill_worker="d", decode_worker="d"))
    assert "stayed on d" in shown(stayed)
    assert "kv.transfer" not in expected_spans(stayed)
    assert as_json(stayed)["hand_over"]["prefill_worker"] == "d"


def test_logprobs_as_plain_values() -> None:
    entry = sampling_pb2.TokenLogprobs(
        sampled={"token_id": 5, "logprob": -0.5}, top=[{"token_id": 7, "logprob": -0.25}]
    )
    empty = sampling_pb2.TokenLogprobs()
    plain = as_json(msgspec.structs.replace(answer([0.1]), logprobs=[entry], prompt_logprobs=[empty, entry]))
    expected = {"token_id": 5, "logprob": -0.5, "top": [{"token_id": 7, "logprob": -0.25}]}
    assert plain["logprobs"] == [expected]
    assert plain["prompt_logprobs"] == [None, expected]
