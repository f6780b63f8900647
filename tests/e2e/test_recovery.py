"""kill -9 under load, with a second worker of each role: no client notices, and nothing of it is left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.local.stack import LocalStack
from baton.rpc import sampling_pb2
from tests.e2e.client import assert_at_rest, token_request, worker_stats
from tests.e2e.under_load import (
    LEASE_S,
    Response,
    assert_same,
    busiest,
    mixed_requests,
    restart,
    stack_options,
    stream_all,
)


@pytest.fixture(scope="module")
def stack(smollm2: Path) -> Iterator[LocalStack]:
    with LocalStack(stack_options(str(smollm2))) as stack:
        yield stack


def by_index(responses: list[Response]) -> list[list[Response]]:
    """Those of each answer to one request."""
    count = 1 + max(response.index for response in responses)
    return [[response for response in responses if response.index == index] for index in range(count)]


def test_decode_killed_in_mid_decode(stack: LocalStack) -> None:
    requests = mixed_requests(100, 60, 40)
    several = sampling_pb2.SamplingParams(temperature=0.8, seed=3, n=4, max_tokens=40, ignore_eos=True)
    requests += [token_request(range(300, 360), several) for _ in range(2)]
    expected = stream_all(stack, requests, lambda tokens: True, lambda: None)
    killed: list[str] = []

    def kill() -> None:
        killed.append(busiest(stack, "decode"))
        stack.kill(killed[0])

    got = stream_all(stack, requests, lambda tokens: tokens >= 100, kill)
    assert_same(got[:8], expected[:8])
    for ours, theirs in zip(got[8:], expected[8:], strict=True):
        assert len(by_index(ours)) == 4
        assert_same(by_index(ours), by_index(theirs))
    assert killed[0] not in {one.hand_over.decode_worker for answer in got for one in answer}
    assert_at_rest([address for name, address in stack.worker_addresses.items() if name != killed[0]])
    restart(stack, killed[0])


def test_prefill_killed_in_mid_prefill(stack: LocalStack) -> None:
    requests = mixed_requests(2000, 400, 6)
    before = worker_stats(stack.worker_addresses["prefill-0"]).steps

    def computing(tokens: int) -> bool:
        return worker_stats(stack.worker_addresses["prefill-0"]).steps >= before + 3

    got = stream_all(stack, requests, computing, lambda: stack.kill("prefill-0"))
    assert_same(got, stream_all(stack, requests, lambda tokens: True, lambda: None))
    # Nobody can confirm that the dead worker has stopped writing, so its blocks wait for the lease to end.
    survivors = [address for name, address in stack.worker_addresses.items() if name != "prefill-0"]
    assert_at_rest(survivors, within_s=LEASE_S + 5)
    restart(stack, "prefill-0")
