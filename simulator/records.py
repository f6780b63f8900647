"""What became of each request: compact while a simulation runs, a row of `baton bench` afterwards."""

import array
import math

import numpy as np

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

    def arrivals_ms(self, token_s: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """When each token came, since the request was sent; `token_s` is a token's way to the client.

        No token comes before the one in front of it.
        """
        moments = [] if math.isnan(self.first_s) else [[self.first_s]]
        moments += [log[start:end] for log, start, end in self.stretches]  # type: ignore[misc]
        if not moments:
            return np.zeros(0)
        return np.maximum.accumulate((np.concatenate(moments) + (token_s - self.sent_s)) * 1e3)

    def row(self, token_s: float) -> RequestRow:
        """`token_s` as in `arrivals_ms`."""
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
            arrivals_ms=self.arrivals_ms(token_s).tolist(),
            error=self.error,
            message=self.message,
        )
