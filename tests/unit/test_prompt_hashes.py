"""Hashes from memory are those that workers compute, whatever was asked for before, and memory is bounded."""

import random

from baton.block_hash import block_hashes
from gateway.prompt_hashes import PromptHashes


def test_they_are_the_workers_hashes() -> None:
    chance, hashes = random.Random(4), PromptHashes("f", max_pieces=6)
    prompts = [[chance.randrange(2**32) for _ in range(3000)] for _ in range(3)]
    for _ in range(60):
        prompt = chance.choice(prompts)[: chance.randrange(3001)] + chance.choice(prompts)[: chance.randrange(700)]
        block_size = chance.choice([8, 16, 32])
        assert hashes.of(prompt, block_size) == block_hashes("f", prompt, block_size)
        assert len(hashes._pieces) <= 6


def test_a_prompt_is_hashed_once() -> None:
    hashes, prompt = PromptHashes("f"), list(range(2048))
    first = hashes.of(prompt, 16)
    again = hashes.of([*prompt, 1, 2, 3], 16)
    assert all(one is other for one, other in zip(first, again, strict=True))
    # The same tokens behind another beginning are another prefix.
    assert not set(hashes.of([7, *prompt[1:]], 16)) & set(first)
