"""Many requests at once get the tokens that each gets alone."""

from pathlib import Path

from baton.local.stack import LocalStack
from tests.e2e.client import ask_together, greedy, token_request
from tests.e2e.oracle import Oracle, prompts_with_clear_answers

MAX_TOKENS = 8


def test_64_at_once_equal_one_by_one(apart: LocalStack, smollm2: Path) -> None:
    lengths = [5 + 3 * number for number in range(64)]
    prompts, answers = prompts_with_clear_answers(Oracle(smollm2), lengths, MAX_TOKENS, seed=64)
    requests = [token_request(prompt, greedy(MAX_TOKENS)) for prompt in prompts]
    together = ask_together(apart.gateway_address, requests, width=64)
    alone = ask_together(apart.gateway_address, requests, width=1)
    for one, other, expected in zip(together, alone, answers, strict=True):
        assert one.token_ids == other.token_ids == expected.token_ids
