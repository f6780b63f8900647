"""A model whose KV is a hash chain and whose tokens hash all of the KV: wrong bytes anywhere give a wrong token."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from baton.model_config.rope import RopeSpec
from baton.model_spec import ModelSpec
from baton.types import FinishReason, KvLayout, SamplingParams
from engine.config import EngineConfig
from engine.runner import StepResult
from engine.scheduler.base import BlockCopies, StepPlan
from engine.scheduler.costs import PreemptionCosts

BLOCK = 8
VOCAB = 64
MAX_LEN = 96
FINGERPRINT = "simulated"
_MASK = 2**64 - 1

SPEC = ModelSpec(
    name="simulated",
    path="",
    architecture="Simulated",
    vocab_size=VOCAB,
    hidden_size=2,
    intermediate_size=2,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    norm_eps=1e-5,
    activation="silu",
    rope=RopeSpec(theta=1.0),
    local_rope=None,
    windows=(None,),
    query_scale=1.0,
    attention_softcap=None,
    logit_softcap=None,
    attention_bias=False,
    mlp_bias=False,
    moe=None,
    max_position_embeddings=MAX_LEN,
    tie_word_embeddings=False,
    eos_token_ids=(0,),
    dtype="float32",
    special={},
    fingerprint=FINGERPRINT,
)


def _word(before: int, token: int, position: int) -> int:
    """A token's KV, given that of the token before it."""
    mixed = (before * 0x9E3779B97F4A7C15 + token * 0xBF58476D1CE4E5B9 + position + 1) & _MASK
    return mixed ^ (mixed >> 29)


def _draw(words: bytes, seed: int, position: int) -> int:
    """The token behind the tokens of this KV."""
    state = hashlib.blake2b(words, digest_size=8, key=seed.to_bytes(8, "little")).digest()
    return (int.from_bytes(state, "little") + position) % VOCAB


def oracle(prompt: Sequence[int], sampling: SamplingParams) -> tuple[list[int], FinishReason]:
    """The one right answer."""
    words: list[int] = []
    tokens = list(prompt)
    output: list[int] = []
    while True:
        for position in range(len(words), len(tokens)):
            words.append(_word(words[-1] if words else 0, tokens[position], position))
        token = _draw(np.array(words, dtype=np.uint64).tobytes(), sampling.seed, len(output))
        output.append(token)
        tokens.append(token)
        if token in sampling.stop_token_ids and len(output) > sampling.min_tokens:
            return output, FinishReason.STOP
        if len(output) >= sampling.max_tokens or len(tokens) >= MAX_LEN:
            return output, FinishReason.LENGTH


class SimulatedRunner:
    """Stands for `ModelRunner`: keeps the KV in a real pool, in keys and, inverted, in values."""

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        self.layout = KvLayout(1, 1, 2, BLOCK, "float32", FINGERPRINT)
        self.num_blocks = num_blocks
        self.pool = torch.zeros((num_blocks, 1, 1, 2, BLOCK, 2), dtype=torch.float32)
        self._words = self.pool.view(torch.int64).numpy().view(np.uint64).reshape(num_blocks, 2, BLOCK)
        self._host = np.zeros((0, 2, BLOCK), dtype=np.uint64)

    def open_swap_space(self, num_bytes: int, costs: PreemptionCosts) -> int:
        self._host = np.zeros((num_bytes // self.layout.block_bytes, 2, BLOCK), dtype=np.uint64)
        costs.observe_copy(1, 1e-4)
        return len(self._host)

    def swap(self, copies: BlockCopies) -> None:
        for device, host in copies.outs:
            self._host[host] = self._words[device]
        for host, device in copies.ins:
            self._words[device] = self._host[host]

    def clear_tail(self, block_id: int, num_tokens: int) -> None:
        self._words[block_id, :, num_tokens:] = 0

    def execute(self, plan: StepPlan) -> StepResult:
        drawn = {}
        for request, num_tokens, sample in plan.sequences:
            start, blocks = request.num_computed_tokens, request.block_ids
            before = int(self._words[blocks[(start - 1) // BLOCK], 0, (start - 1) % BLOCK]) if start else 0
            for position in range(start, start + num_tokens):
                before = _word(before, request.tokens[position], position)
                self._words[blocks[position // BLOCK], :, position % BLOCK] = before, before ^ _MASK
            if sample:
                count = start + num_tokens
                kept = self._words[blocks[: -(-count // BLOCK)]]
                keys = kept[:, 0].reshape(-1)[:count]
                values = kept[:, 1].reshape(-1)[:count]
                words = np.where(keys == ~values, keys, np.uint64(1)).tobytes()
                drawn[request.key] = _draw(words, request.sampling.seed, request.num_output_tokens)
        return StepResult(drawn, {})
