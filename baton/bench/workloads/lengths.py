"""Lengths of prompts and answers: a mean and how far single ones may be from it."""

import msgspec
import numpy as np


class Lengths(msgspec.Struct, frozen=True):
    """Uniform in [mean · (1 - spread), mean · (1 + spread)], at least one token."""

    mean: int
    spread: float = 0.0

    def draw(self, generator: np.random.Generator) -> int:
        """One length in tokens."""
        low, high = round(self.mean * (1 - self.spread)), round(self.mean * (1 + self.spread))
        return max(1, int(generator.integers(low, high + 1)))
