"""What a request's attempts have delivered so far, which is where the next attempt goes on."""

from baton.rpc import sampling_pb2
from baton.types import FinishReason
from gateway.attempt import Tokens


class Progress:
    """Takes the tokens of one attempt after the other, in order and without gaps."""

    def __init__(self, sampling: sampling_pb2.SamplingParams) -> None:
        """`sampling`: with all defaults decided."""
        self._sampling = sampling
        self._token_ids: list[int] = []

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All output so far."""
        return tuple(self._token_ids)

    def add(self, tokens: Tokens) -> None:
        """The next ones."""
        assert tokens.position == len(self._token_ids), f"got position {tokens.position} after {len(self._token_ids)}"
        self._token_ids += tokens.token_ids

    def end_reason(self) -> FinishReason | None:
        """Why the output is complete, whoever has died before it could say so; None while a token is still to come.

        The rule is that of the engine's `finish_reason`; `max_tokens` keeps within the context by now.
        """
        count, sampling = len(self._token_ids), self._sampling
        if count and self._token_ids[-1] in sampling.stop_token_ids and count > sampling.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if count >= sampling.max_tokens else None
