"""The gateway prefers the prefill worker that owns the longest prefix, as Redis has it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.config import StackOptions
from baton.local.stack import LocalStack
from tests.e2e.client import ask_together, assert_at_rest, greedy, token_request
from tests.e2e.conftest import OPTIONS


@pytest.fixture
def stack(smollm2: Path) -> Iterator[LocalStack]:
    with LocalStack(StackOptions(model=str(smollm2), prefill=2, **OPTIONS)) as stack:  # type: ignore[arg-type]
        yield stack
        assert_at_rest([*stack.worker_addresses.values()])


def test_requests_follow_their_prefix(stack: LocalStack) -> None:
    prompts = [[1000 * n + k for k in range(80)] for n in range(1, 7)]
    requests = [token_request(prompt, greedy(2)) for prompt in prompts]
    first = ask_together(stack.gateway_address, requests)
    workers = [answer.hand_over.prefill_worker for answer in first]
    assert set(workers) == {"prefill-0", "prefill-1"}  # new prompts are spread
    time.sleep(1.0)  # ownership is published behind the answers
    longer = [token_request([*prompt, 5, 6, 7], greedy(2)) for prompt in prompts]
    again = ask_together(stack.gateway_address, longer)
    assert [answer.hand_over.prefill_worker for answer in again] == workers
    assert [answer.usage.cached_prompt_tokens for answer in again] == [80] * len(prompts)
