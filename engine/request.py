"""One request inside an engine core: its tokens, its blocks, and the moments of its life."""

import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING

from baton.block_hash import extend_hashes
from baton.types import SamplingParams
from engine.messages import ComputeSpan, Timeline, WriteSpan

if TYPE_CHECKING:  # it holds token masks: importing it takes torch, which plans need not
    from engine.grammar.state import GrammarState

Key = tuple[str, int]  # (request_id, epoch)
Rank = tuple[float, int]  # lower is served first; engine/scheduler/policy.py


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """Mutable state, owned by exactly one scheduler, grant table or hand-over at a time."""

    key: Key
    num_prompt_tokens: int
    sampling: SamplingParams
    tokens: list[int]  # prompt, then output; at first with the output that an earlier attempt has delivered
    queued_unix_ns: int
    last_hash: bytes  # of the last full block hashed so far; the root hash at first
    grammar: "GrammarState | None" = None  # None: free text
    block_ids: list[int] = dataclasses.field(default_factory=list)
    hashes: list[bytes] = dataclasses.field(default_factory=list)  # of the full blocks of `tokens`
    num_computed_tokens: int = 0  # whose KV is in `block_ids`, or will be when the steps in flight have ended
    num_settled_tokens: int = 0  # of the computed ones, by steps here that have ended; a decode scheduler's
    num_cached_tokens: int = 0  # of the prompt, found in this worker's prefix cache at first
    num_registered_blocks: int = 0  # whose hashes the prefix cache has seen
    shares_last_block: bool = False  # which is another request's, too, so it is copied before it is written
    num_told_positions: int = 1  # of the prompt, whose log-probabilities are out; the first token has none
    priority: int = 0  # lower is earlier
    rank: Rank = (0.0, 0)  # given by the scheduler at arrival
    host_block_ids: list[int] = dataclasses.field(default_factory=list)  # of a preempted request that was swapped out
    num_swapped_tokens: int = 0  # whose KV is in `host_block_ids`
    num_lost_tokens: int = 0  # that were computed when it was preempted, until it starts again
    num_unknown_tokens: int = 0  # behind `tokens`, drawn by steps in flight
    num_steps_in_flight: int = 0  # that compute tokens of it
    is_over: bool = False  # finished or taken out: what steps in flight do for it is thrown away
    started_unix_ns: int = 0
    first_token_unix_ns: int = 0
    prefill_chunks: list[ComputeSpan] = dataclasses.field(default_factory=list)
    writes: list[WriteSpan] = dataclasses.field(default_factory=list)
    preempted_unix_ns: list[int] = dataclasses.field(default_factory=list)
    num_given_tokens: int = dataclasses.field(init=False)  # known from the start, so prefilled: `tokens` at first
    # What ends it, out of `sampling`, which schedulers leave alone: they look at all running requests in each step.
    max_len: int = dataclasses.field(init=False)  # tokens with which it ends, prompt included
    min_len: int = dataclasses.field(init=False)  # tokens up to which no stop token ends it
    stop_token_ids: tuple[int, ...] = dataclasses.field(init=False)
    needs_known_tokens: bool = dataclasses.field(init=False)  # each draw depends on the ids of all before, on the host

    def __post_init__(self) -> None:
        self.num_given_tokens = len(self.tokens)
        self.max_len = self.num_prompt_tokens + self.sampling.max_tokens
        self.min_len = self.num_prompt_tokens + self.sampling.min_tokens
        self.stop_token_ids = _shared(self.sampling.stop_token_ids)
        sampling = self.sampling
        self.needs_known_tokens = self.grammar is not None or bool(sampling.bad_words) or sampling.penalized

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Prompt and output, with those whose ids are not known yet."""
        return len(self.tokens) + self.num_unknown_tokens

    @property
    def next_output_position(self) -> int:
        """Of the token to be drawn next, counted from 0."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_new_tokens(self) -> int:
        """Tokens whose KV is still to be computed; 1 for a running decode."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def untold_position(self) -> int | None:
        """The first prompt position whose log-probabilities are wanted and not out, or None."""
        wanted = self.sampling.num_prompt_logprobs is not None and self.num_told_positions < self.num_prompt_tokens
        return self.num_told_positions if wanted else None

    def positions_told_by(self, num_tokens: int) -> range:
        """The untold prompt positions that the logits of the next `num_tokens` tokens to compute speak of."""
        first = self.untold_position
        if first is None:
            return range(0)
        return range(first, min(self.num_computed_tokens + num_tokens + 1, self.num_prompt_tokens))

    def update_hashes(self, block_size: int) -> None:
        """Extends `hashes` to all full blocks of `tokens`."""
        known = len(self.hashes) * block_size
        if len(self.tokens) - known >= block_size:
            self.hashes += extend_hashes(self.last_hash, self.tokens[known:], block_size)
            self.last_hash = self.hashes[-1]

    def timeline(self, finished_unix_ns: int) -> Timeline:
        """The moments so far, as the service gets them."""
        return Timeline(
            queued_unix_ns=self.queued_unix_ns,
            started_unix_ns=self.started_unix_ns,
            first_token_unix_ns=self.first_token_unix_ns,
            finished_unix_ns=finished_unix_ns,
            prefill_chunks=tuple(self.prefill_chunks),
            writes=tuple(self.writes),
            preempted_unix_ns=tuple(self.preempted_unix_ns),
        )


@lru_cache(maxsize=1024)
def _shared(token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The first of equal ones: most requests stop at the same tokens, which then stay in the processor's cache."""
    return token_ids
