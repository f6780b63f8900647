"""A request on the workers that it was routed to, as a policy follows it: placed, first token, end."""

from collections.abc import Callable
from typing import NamedTuple


class Outcome(NamedTuple):
    """What a request that ended well has taken; seconds."""

    prefill_s: float  # from its place to its first token
    decode_s: float  # from there to its last
    num_output_tokens: int
    cached_tokens: int
    handed_over_tokens: int  # 0 when nothing was
    hand_over_s: float


class Claim:
    """`placed`, `produced` and one of `finished` and `dropped`, in this order; each may be left out but the last."""

    def __init__(
        self,
        clock: Callable[[], float],
        when_first: Callable[[], None],
        when_over: Callable[[Outcome | None], None],
    ) -> None:
        """`when_first` is called once, at the first token or at the end; `when_over` once, with None of a failure."""
        self._clock, self._when_first, self._when_over = clock, when_first, when_over
        self._placed_s = clock()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_tokens = 0
        self._first_told = False
        self._over = False

    def placed(self) -> None:
        """Its workers have room and are about to begin."""
        self._placed_s = self._clock()

    def produced(self, num_tokens: int) -> None:
        """Some output."""
        self._last_s = self._clock()
        self._num_tokens += num_tokens
        if self._first_s is None:
            self._first_s = self._last_s
            self._tell_first()

    def finished(self, cached_tokens: int, handed_over_tokens: int, hand_over_s: float) -> None:
        """It has ended well. Idempotent, as is `dropped`."""
        if self._over or self._first_s is None:
            self.dropped()
            return
        prefill_s, decode_s = self._first_s - self._placed_s, self._last_s - self._first_s
        self._end(Outcome(prefill_s, decode_s, self._num_tokens, cached_tokens, handed_over_tokens, hand_over_s))

    def dropped(self) -> None:
        """It is not on these workers any more, or has failed."""
        if not self._over:
            self._end(None)

    def _end(self, outcome: Outcome | None) -> None:
        self._over = True
        self._tell_first()
        self._when_over(outcome)

    def _tell_first(self) -> None:
        if not self._first_told:
            self._first_told = True
            self._when_first()
