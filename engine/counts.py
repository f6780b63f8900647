"""What an engine core counts from its start on: steps and KV writes, as plain numbers."""

from bisect import bisect_left
from collections.abc import Sequence

from baton.telemetry.buckets import STEP_SECONDS, STEP_SEQUENCES, STEP_TOKENS
from baton.types import Distribution, WriteCounts


class Tally:
    """How many observed values were at most each bound and above the one before."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Takes one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> Distribution:
        """All values so far."""
        return Distribution(tuple(self._counts), self._total)


class EngineCounts:
    """Made once a core; written by its one thread."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.step_seconds = Tally(STEP_SECONDS)
        self.step_tokens = Tally(STEP_TOKENS)
        self.step_sequences = Tally(STEP_SEQUENCES)
        self._done = self._failed = self._blocks = self._bytes = self._us = 0

    def step(self, seconds: float, num_tokens: int, num_sequences: int) -> None:
        """A step has computed something."""
        self.num_steps += 1
        self.step_seconds.observe(seconds)
        self.step_tokens.observe(num_tokens)
        self.step_sequences.observe(num_sequences)

    def write(self, num_blocks: int, num_bytes: int, transfer_us: int, ok: bool) -> None:
        """A KV write has ended, `transfer_us` after its post."""
        self._done += ok
        self._failed += not ok
        self._blocks += num_blocks
        self._bytes += num_bytes
        self._us += transfer_us

    def writes(self) -> WriteCounts:
        """All KV writes that have ended."""
        return WriteCounts(self._done, self._failed, self._blocks, self._bytes, self._us)
