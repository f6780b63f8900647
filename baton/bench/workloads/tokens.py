"""Made-up token ids that are the same for the same names."""

import numpy as np

LOWEST_TOKEN = 100  # the ids below hold special tokens in most vocabularies


class TokenSource:
    """Token ids of [LOWEST_TOKEN, vocab_size)."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._seed, self._vocab_size = seed, vocab_size

    def generator(self, *name: int) -> np.random.Generator:
        """Random numbers that belong to these numbers, none of them negative, and to the seed."""
        return np.random.default_rng([self._seed, *name])

    def tokens(self, count: int, *name: int) -> list[int]:
        """`count` ids."""
        drawn: list[int] = self.generator(*name).integers(LOWEST_TOKEN, self._vocab_size, count).tolist()
        return drawn
