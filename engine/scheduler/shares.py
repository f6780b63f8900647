"""How one step's token budget is dealt out to prompts."""

from collections.abc import Callable

from engine.request import Request
from engine.scheduler.base import SequencePlan

ChunkOf = Callable[[Request, int], int]  # the most of a request that can be computed within so many tokens


def whole_or_part(request: Request, limit: int) -> int:
    """A chunk that may end anywhere."""
    return min(request.num_new_tokens, limit)


class StepShares:
    """No prompt gets more than `cap` tokens while others want some; what nobody has taken is dealt out in the end.

    So short prompts get past a long one, and one that is alone still fills the step. A prompt that would be left
    unfinished gets nothing while one before it is: two long prompts side by side would both be late.
    """

    def __init__(self, budget: int, cap: int, chunk_of: ChunkOf) -> None:
        self.left = budget
        self._cap = cap
        self._chunk_of = chunk_of
        self._chunks: dict[Request, int] = {}
        self._unfinished: Request | None = None  # the first by rank

    def offer(self, request: Request) -> int:
        """Tokens of `request` that it may take within the cap; 0 when it is to wait for the next step."""
        chunk = self._chunk_of(request, min(self.left, self._cap))
        first = self._unfinished
        return 0 if first and chunk < request.num_new_tokens and first.rank < request.rank else chunk

    def take(self, request: Request, chunk: int) -> None:
        """`request` takes what it was offered."""
        self._chunks[request] = chunk
        self.left -= chunk
        if chunk < request.num_new_tokens and not (self._unfinished and self._unfinished.rank < request.rank):
            self._unfinished = request

    def deal_rest(self, grow: Callable[[Request, int], bool]) -> None:
        """Raises chunks above the cap. `grow(request, tokens in all)` makes room, or says that there is none."""
        for request, chunk in sorted(self._chunks.items(), key=lambda item: item[0].rank):
            if not self.left:
                return
            more = self._chunk_of(request, chunk + self.left)
            if more > chunk and grow(request, request.num_computed_tokens + more):
                self._chunks[request] = more
                self.left -= more - chunk

    def sequences(self) -> list[SequencePlan]:
        """What was taken, in order."""
        return [
            SequencePlan(request, chunk, sample=chunk == request.num_new_tokens)
            for request, chunk in self._chunks.items()
        ]
