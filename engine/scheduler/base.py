"""The scheduling seam: plain data out (`schedule`), plain data in (`commit`); no tensor in sight.

A step is `plan = schedule()`, launched elsewhere, `advance(plan)`, and, when its tokens are known,
`commit(plan, tokens)`. All run on the engine core's one thread. A step that is advanced and not committed is in flight:
one may be, while the next one is planned and launched and while requests are added and removed. Steps are committed in
the order of their launches.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from baton.types import FinishReason
from engine.request import Key, Request


class SequencePlan(NamedTuple):
    """`num_tokens` tokens of one request, from its `num_computed_tokens` on; `sample`: draw the token behind them."""

    request: Request
    num_tokens: int
    sample: bool


class BlockCopies(NamedTuple):
    """KV blocks to be copied before a step computes: all `outs` first, then all `within`, then all `ins`."""

    outs: tuple[tuple[int, int], ...] = ()  # (device block, host block)
    within: tuple[tuple[int, int], ...] = ()  # (device block, device block)
    ins: tuple[tuple[int, int], ...] = ()  # (host block, device block)


class StepPlan(NamedTuple):
    """What one step copies, and then computes, in the order of the flattened batch."""

    sequences: tuple[SequencePlan, ...]
    copies: BlockCopies = BlockCopies()

    @property
    def num_tokens(self) -> int:
        return sum(seq.num_tokens for seq in self.sequences)


class Advanced(msgspec.Struct, frozen=True, gc=False):  # no garbage collection counts one for each sequence and step
    """What a step did for one request. `token` is None while its prompt is not finished."""

    request: Request
    token: int | None
    finish: FinishReason | None

    @property
    def grammar_problem(self) -> str | None:
        """Why the request cannot go on under its grammar."""
        return self.request.grammar.problem if self.request.grammar else None


class Scheduler(ABC):
    """Decides the next step over the requests it holds."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Ranks and queues a request that holds no blocks."""

    @abstractmethod
    def remove(self, key: Key) -> Request | None:
        """Takes a request out, whose blocks are the caller's now; None when unknown.

        At any moment outside of these calls: what a step in flight does for it is thrown away.
        """

    @abstractmethod
    def schedule(self) -> StepPlan:
        """The next step; without sequences when nothing can run, and even then its copies must be made."""

    @abstractmethod
    def advance(self, plan: StepPlan) -> None:
        """Takes note that `plan` is under way: what it computes counts as computed, what it draws as unknown tokens."""

    @abstractmethod
    def commit(self, plan: StepPlan, tokens: Sequence[int]) -> list[Advanced]:
        """Takes the oldest step's sampled tokens, and returns what it did for each request that is not over, in order.

        The token of a request that has been preempted meanwhile counts like any other.

        Args:
            tokens: of the plan's sequences that sample, in their order
        """

    @abstractmethod
    def holders(self) -> Sequence[Sequence[int]]:
        """The lists of all blocks held, for requests or for the step in flight, for the integrity check."""

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Requests that hold blocks."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Requests that hold none yet."""


def finish_reason(request: Request, max_model_len: int) -> FinishReason | None:
    """Whether the newest output token ends the request."""
    tokens = request.tokens
    length = len(tokens)
    if tokens[-1] in request.stop_token_ids and length > request.min_len:
        return FinishReason.STOP
    if request.grammar is not None and request.grammar.over:
        return FinishReason.STOP
    if length >= request.max_len or length >= max_model_len:
        return FinishReason.LENGTH
    return None


def ends_by_length(request: Request, max_model_len: int) -> bool:
    """Whether the newest token, its id known or not, is the last one that the limits allow."""
    length = len(request.tokens) + request.num_unknown_tokens  # not by the properties: this runs for all, in each step
    return length >= request.max_len or length >= max_model_len
