"""The parts of a request's time to its first token, on a clock of the test's own."""

from baton.rpc import worker_pb2
from gateway.ttft import PARTS, TtftParts


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_ms(self, ms: float) -> None:
        self.now_s += ms / 1e3


def parts_of(ttft: TtftParts) -> dict[str, int]:
    sent = ttft.sent()
    assert sent is not None
    assert set(sent) == {"baton.ttft_us", *(f"baton.ttft.{part}_us" for part in PARTS)}
    assert sent["baton.ttft_us"] == sum(sent[f"baton.ttft.{part}_us"] for part in PARTS)
    return {part: sent[f"baton.ttft.{part}_us"] for part in PARTS if sent[f"baton.ttft.{part}_us"]}


def test_parts_follow_one_another() -> None:
    clock = Clock()
    ttft = TtftParts(clock)
    for ms, name in ((1, "gateway.tokenize"), (2, "gateway.admit"), (3, "gateway.route"), (4, "decode.reserve")):
        clock.pass_ms(ms)
        ttft.span_ended(name)
    clock.pass_ms(60)
    ttft.span_ended("gateway.migrate")  # no part of it
    ttft.first_token(worker_pb2.PromptTimes(queue_us=20_000, compute_us=35_000))
    clock.pass_ms(7)
    ttft.span_ended("gateway.route")  # of a migration behind the first token
    ttft.first_token(worker_pb2.PromptTimes(queue_us=1, compute_us=1))
    assert parts_of(ttft) == {
        "tokenize": 1000,
        "admit": 2000,
        "route": 3000,
        "reserve": 4000,
        "queue": 20_000,
        "compute": 35_000,
        "travel": 5000,
        "send": 7000,
    }
    assert ttft.sent() is None


def test_a_worker_that_says_more_than_passed_is_not_believed() -> None:
    clock = Clock()
    ttft = TtftParts(clock)
    clock.pass_ms(10)
    ttft.first_token(worker_pb2.PromptTimes(queue_us=4000, compute_us=4_000_000_000))
    assert parts_of(ttft) == {"queue": 4000, "compute": 6000}


def test_a_failed_attempt_is_a_part_of_its_own() -> None:
    clock = Clock()
    ttft = TtftParts(clock)
    clock.pass_ms(5)
    ttft.span_ended("decode.reserve")
    clock.pass_ms(100)
    ttft.lap("retry")
    clock.pass_ms(6)
    ttft.span_ended("decode.reserve")
    clock.pass_ms(9)
    ttft.first_token(worker_pb2.PromptTimes(compute_us=9000))
    assert parts_of(ttft) == {"reserve": 11_000, "retry": 100_000, "compute": 9000}


def test_a_first_token_of_another_answers_prompt() -> None:
    clock = Clock()
    ttft = TtftParts(clock)
    clock.pass_ms(8)
    assert parts_of(ttft) == {"travel": 8000}
