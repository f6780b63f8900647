"""Decode steps in which nothing happens, taken together: nobody arrives, ends, or fills a block."""

from bisect import bisect_right

from engine.scheduler.base import SequencePlan
from engine.scheduler.decode import DecodeScheduler
from simulator.costs import StepCosts

_MOST = 32  # at once: more are often for nothing, because somebody arrives


class SkippingScheduler(DecodeScheduler):
    """The product's, and what it would be like after several uneventful steps.

    That its plans are those of the steps one by one is shown by `tests/unit/test_simulator_skipping.py`.
    """

    def num_uneventful(self, in_flight: int) -> int:
        """How many more steps can follow, `in_flight` of them under way, whose plans are the newest one's."""
        if self._waiting or self._prefilling or self._ending or len(self._forks) or self._blocks.held_back:
            return 0
        block_size, longest = self._blocks.block_size, self._max_model_len
        fewest = _MOST
        for request, _, _ in self._decoding.values():
            place = request.num_computed_tokens % block_size
            left = min(request.max_len, longest) - len(request.tokens) - in_flight - 1
            fewest = min(fewest, left, block_size - 1 - place if place else 0)
        return fewest if self._decoding else 0

    def skip(self, count: int) -> None:
        """`count` uneventful steps have been planned and committed; as many as before are in flight."""
        zeros = bytes(count)
        for request, _, _ in self._decoding.values():
            request.num_computed_tokens += count
            request.tokens += zeros
        for computed in self._computed:
            computed[:] = [tokens + count for tokens in computed]

    @property
    def decodes(self) -> tuple[SequencePlan, ...]:
        """What each uneventful step does."""
        return tuple(self._decoding.values())

    @property
    def num_decodes(self) -> int:
        """Requests that draw a token in each step."""
        return len(self._decoding)


class Stretch:
    """Consecutive steps of one plan, with their times; `count` of them are to be committed when it ends."""

    __slots__ = ("count", "ends_s", "in_flight", "starts_s")

    def __init__(self, starts_s: list[float], ends_s: list[float], in_flight: int) -> None:
        """`in_flight`: the last ones, which stay under way when the stretch ends."""
        self.starts_s, self.ends_s, self.in_flight = starts_s, ends_s, in_flight
        self.count = len(ends_s) - in_flight

    @property
    def end_s(self) -> float:
        """When the last step that counts has ended."""
        return self.ends_s[self.count - 1]

    def num_ended(self, now_s: float) -> int:
        """Steps that have ended by now."""
        return bisect_right(self.ends_s, now_s)

    def cut(self, now_s: float) -> bool:
        """Something happens now: the step that runs is the last one. False when it is that already."""
        count = min(self.count, self.num_ended(now_s) + 1)
        cut = count < self.count
        self.count = count
        del self.ends_s[count + self.in_flight :], self.starts_s[count + self.in_flight :]
        return cut


def decode_seconds(costs: StepCosts, num_decodes: int, num_context: int, count: int) -> list[float]:
    """What `count` steps of nothing but decodes take; `num_context` tokens are attended to in the first one.

    Linear in the context between the bends of the roofline, so no step needs its work written down.
    """
    lines = [(costs.base_s + num_decodes * costs.decode_s, costs.context_s)]
    if floor := costs.floor:
        flop = num_decodes * (floor.flop_per_token + floor.flop_per_drawn)
        lines.append((flop / floor.flop_s, floor.flop_per_pair / floor.flop_s))
        lines.append((floor.weight_bytes / floor.read_bytes_s, floor.kv_bytes_per_token / floor.read_bytes_s))
    contexts = range(num_context, num_context + count * num_decodes, num_decodes)
    return [max([base_s + context * context_s for base_s, context_s in lines]) for context in contexts]
