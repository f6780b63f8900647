"""The spans of one Prefill call, written once, however it ends."""

import time

from baton.errors import ErrorCode
from engine.messages import Failed, Finished, Timeline, Tokens
from engine.spans import AttemptSpans


class CallSpans:
    """Told what the engine core says, and that the call is over."""

    def __init__(self, spans: AttemptSpans) -> None:
        self._spans = spans
        self._opened_ns = time.time_ns()
        self._first_token_ns = 0
        self._cached_tokens = 0
        self._recorded = False

    def first_token(self, event: Tokens) -> None:
        """It was drawn."""
        self._first_token_ns = time.time_ns()
        self._cached_tokens = event.cached_tokens

    def core_ended(self, end: Finished | Failed) -> None:
        """The core has told the whole story."""
        finished = end if isinstance(end, Finished) else None
        if isinstance(end, Failed):
            self._spans.failed(end.code)
        self._write(end.timeline, finished)

    def call_ended(self) -> None:
        """The call is over. Where the core has not told its story, the attempt was cancelled.

        The core does not say then when its first step was, so that waiting for it counts as computing.
        """
        if self._recorded:
            return
        self._spans.failed(ErrorCode.CANCELLED)
        self._write(Timeline(self._opened_ns, self._opened_ns, self._first_token_ns, time.time_ns()), None)

    def _write(self, timeline: Timeline, finished: Finished | None) -> None:
        self._recorded = True
        self._spans.queue("prefill", timeline)
        self._spans.compute(timeline, finished.cached_tokens if finished else self._cached_tokens)
        self._spans.transfer(timeline, finished.transfer if finished else None)
