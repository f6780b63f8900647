"""A prompt that waits for its prefill worker longer than its grant's lease lasts: renewed, it survives."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.config import StackOptions
from baton.local.stack import LocalStack
from baton.rpc import inference_pb2
from tests.e2e.client import Answer, ask_together, assert_at_rest, connect, generate, greedy, token_request
from tests.e2e.conftest import OPTIONS

LEASE_S = 4.0  # renewed at every third of it; an engine step of this stack takes a small part of that
AT_ONCE = 6


@pytest.fixture
def stack(smollm2: Path) -> Iterator[LocalStack]:
    options = {**OPTIONS, "kv_cache_bytes": 256 << 20, "max_num_batched_tokens": 64}
    with LocalStack(
        StackOptions(model=str(smollm2), lease_s=LEASE_S, scheduling_policy="priority", num_threads=1, **options)  # type: ignore[arg-type]
    ) as stack:
        yield stack


def numbered(index: int, prompt_tokens: int, max_tokens: int, priority: int) -> inference_pb2.GenerateRequest:
    ids = [20 + (index * 131 + position * 7) % 9000 for position in range(prompt_tokens)]
    request = token_request(ids, greedy(max_tokens, ignore_eos=True))
    request.priority = priority
    return request


def test_a_prompt_outlives_its_lease_in_prefills_queue(stack: LocalStack) -> None:
    """Prompts that go before it keep coming until the lease that it began with is over."""
    waiting = numbered(0, 100, 8, priority=100)

    async def run() -> Answer:
        over = asyncio.Event()
        numbers = itertools.count(1)

        async with connect(stack.gateway_address) as channel:

            async def keep_busy() -> None:
                while not over.is_set():
                    await generate(channel, numbered(next(numbers), 200, 1, priority=-100))

            busy = [asyncio.create_task(keep_busy()) for _ in range(AT_ONCE)]
            await generate(channel, numbered(next(numbers), 200, 1, priority=-100))
            asked = asyncio.create_task(generate(channel, waiting))
            await asyncio.sleep(2 * LEASE_S)
            assert not asked.done(), "it did not wait"
            over.set()
            answer = await asked
            await asyncio.gather(*busy)
            return answer

    answer = asyncio.run(run())
    assert "attempt" not in (stack.run_folder / "gateway.log").read_text()  # the first one has succeeded
    (again,) = ask_together(stack.gateway_address, [waiting])
    assert answer.token_ids == again.token_ids
    assert len(again.token_ids) == 8
    assert_at_rest([*stack.worker_addresses.values()])
