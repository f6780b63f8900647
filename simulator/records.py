"""What became of each request: compact while a simulation runs, a row of `baton bench` afterwards."""

import array
import math

from baton.bench.rows import RequestRow

Log = array.array  # of moments, in seconds


class Record:
    """One request. Its tokens' moments are stretches of its workers' logs of steps, so each costs nothing."""

    __slots__ = (
        "cached_tokens",
        "end_s",
        "error",
        "first_s",
        "input_tokens",
        "message",
        "num_delivered",
        "output_tokens",
        "scheduled_s",
        "sent_s",
        "session",
        "stretches",
        "turn",
    )

    def __init__(self, session: int, turn: int, scheduled_s: float, sent_s: float, input_tokens: int) -> None:
        self.session, self.turn = session, turn
        self.scheduled_s, self.sent_s = scheduled_s, sent_s
        self.input_tokens = input_tokens
        self.cached_tokens: int | None = None
        self.first_s = math.nan  # of a first token that prefill has drawn
        self.stretches: tuple[tuple[Log[float], int, int], ...] = ()
        self.num_delivered = 0  # tokens
        self.output_tokens = 0
        self.end_s = math.nan
        self.error: str | None = None
        self.message: str | None = None

    def drawn_at(self, moment_s: float) -> None:
        """One token of a prefill worker."""
        if self.num_delivered:
            self.stretches = (*self.stretches, (array.array("d", [moment_s]), 0, 1))
        else:
            self.first_s = moment_s
        self.num_delivered += 1

    def drawn(self, log: "Log[float]", start: int, end: int) -> None:
        """Tokens of a decode worker."""
        self.stretches = (*self.stretches, (log, start, end))
        self.num_delivered += end - start

    def moments_s(self) -> list[float]:
        """When each token was drawn."""
        moments = [] if math.isnan(self.first_s) else [self.first_s]
        for log, start, end in self.stretches:
            moments += log[start:end]
        return moments

    def row(self, token_s: float) -> RequestRow:
        """`token_s`: a token's way to the client. No token comes before the one in front of it."""
        arrivals, newest = [], 0.0
        for moment_s in self.moments_s():
            newest = max(newest, (moment_s + token_s - self.sent_s) * 1e3)
            arrivals.append(newest)
        return RequestRow(
            session=self.session,
            turn=self.turn,
            process=0,
            scheduled_s=self.scheduled_s,
            sent_s=self.sent_s,
            end_s=self.end_s,
            input_tokens=self.input_tokens,
            output_tokens=self.num_delivered,
            cached_tokens=self.cached_tokens,
            arrivals_ms=arrivals,
            error=self.error,
            message=self.message,
        )
