"""A request inside a simulated engine core: the product's, with names in place of tokens."""

from typing import cast

from baton.types import SamplingParams
from engine.request import Key, Request
from simulator.content import BlockKeys


class SimulatedRequest(Request):
    """Its tokens are zeros, a byte each; its block hashes are keys that content gives."""

    __slots__ = ("keys", "log_start", "owner")

    def __init__(
        self, key: Key, num_prompt_tokens: int, num_delivered: int, max_tokens: int, keys: BlockKeys, now_ns: int
    ) -> None:
        """`num_delivered`: output that earlier attempts have brought."""
        super().__init__(
            key=key,
            num_prompt_tokens=num_prompt_tokens,
            sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens),
            tokens=cast("list[int]", bytearray(num_prompt_tokens + num_delivered)),
            queued_unix_ns=now_ns,
            last_hash=b"",
            hashes=cast("list[bytes]", list(keys.prompt)),
        )
        self.keys = keys
        self.log_start = -1  # where its tokens begin in its worker's log of steps; -1: none since the last gap
        self.owner: object = None  # who hears of its tokens

    def update_hashes(self, block_size: int) -> None:
        known, full = len(self.hashes), len(self.tokens) // block_size
        if full > known:
            chain = self.keys.answer_chain
            self.hashes += cast("list[bytes]", [chain ^ index for index in range(known, full)])
