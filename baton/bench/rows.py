"""One request as the client saw it: a row of the results, and what follows from it."""

import itertools
import math

import msgspec

from baton.bench.percentiles import percentile

UNFINISHED = ("interrupted", "undrained")  # the load ended before the request did: neither an answer nor a failure


class RequestRow(msgspec.Struct):
    """Times `_s` are seconds since the load began, `arrivals_ms` milliseconds since the request was sent."""

    session: int
    turn: int  # of the session; 0 where there is but one
    process: int  # which process of the client sent it
    scheduled_s: float
    sent_s: float
    end_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None  # prompt tokens that the server took from a cache, where it says so
    arrivals_ms: list[float] = []  # one for each message that brought tokens
    error: str | None = None  # the kind of failure; None: the answer is complete
    message: str | None = None  # what the server or the network said

    @property
    def name(self) -> str:
        """ "SESSION.TURN"."""
        return f"{self.session}.{self.turn}"

    @property
    def ttft_ms(self) -> float:
        """To the first message with tokens; NaN when none came."""
        return self.arrivals_ms[0] if self.arrivals_ms else math.nan

    @property
    def tpot_ms(self) -> float:
        """Mean time of an output token after the first; NaN of fewer than two tokens."""
        if self.output_tokens < 2 or not self.arrivals_ms:
            return math.nan
        return (self.arrivals_ms[-1] - self.arrivals_ms[0]) / (self.output_tokens - 1)

    @property
    def gaps_ms(self) -> list[float]:
        """Between consecutive messages with tokens: what a reader waits, whatever number of tokens then comes."""
        return [after - before for before, after in itertools.pairwise(self.arrivals_ms)]

    @property
    def max_gap_ms(self) -> float:
        """NaN when there is no gap."""
        return max(self.gaps_ms, default=math.nan)

    @property
    def e2e_ms(self) -> float:
        """To the end of the stream."""
        return (self.end_s - self.sent_s) * 1e3

    def gap_percentile_ms(self, share: float) -> float:
        """Nearest rank; NaN when there is no gap."""
        return percentile(self.gaps_ms, share)
