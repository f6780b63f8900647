"""Output tokens of several workers put into one order by output position."""

from collections.abc import Sequence

from baton.rpc import sampling_pb2
from gateway.attempt import Emit, Tokens


class OutputOrder:
    """Holds back tokens until all before them have come. Positions that come twice are emitted once."""

    def __init__(self, emit: Emit, first_position: int = 0) -> None:
        self._emit = emit
        self._waiting: dict[int, Tokens] = {}  # by first position
        self._first_position = first_position
        self.next_position = first_position

    @property
    def started(self) -> bool:
        """Whether a token has been emitted."""
        return self.next_position > self._first_position

    @property
    def complete(self) -> bool:
        """Whether nothing waits for an earlier token."""
        return not self._waiting

    def add(self, position: int, token_ids: Sequence[int], logprobs: Sequence[sampling_pb2.TokenLogprobs]) -> None:
        """Emits these tokens and those that waited for them, or keeps them."""
        self._waiting[position] = Tokens(position, token_ids, logprobs)
        while ready := [tokens for tokens in self._waiting.values() if tokens.position <= self.next_position]:
            tokens = min(ready)
            del self._waiting[tokens.position]
            known = self.next_position - tokens.position
            if known < len(tokens.token_ids):
                new = Tokens(self.next_position, tokens.token_ids[known:], tokens.logprobs[known:])
                self.next_position += len(new.token_ids)
                self._emit(new)
