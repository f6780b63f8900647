"""A model whose KV is a hash chain and whose tokens hash all of the KV: wrong bytes anywhere give a wrong token."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from baton.model_config.rope import RopeSpec
from baton.model_spec import ModelSpec
from baton.types import FinishReason, KvLayout, SamplingParams
from engine.config import EngineConfig
from engine.request import Key, Request
from engine.scheduler.base import BlockCopies, StepPlan
from engine.scheduler.costs import PreemptionCosts
from engine.step_in_flight import StepResult

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
        self._launched: SimulatedStep | None = None
        self.on_gpu = False
        self.drawn: dict[Key, int] = {}  # the newest token of each request

    def open_swap_space(self, num_bytes: int, costs: PreemptionCosts) -> int:
        self._host = np.zeros((num_bytes // self.layout.block_bytes, 2, BLOCK), dtype=np.uint64)
        costs.observe_copy(1, 1e-4)
        return len(self._host)

    def copy_blocks(self, copies: BlockCopies) -> None:
        self._finish()
        for device, host in copies.outs:
            self._host[host] = self._words[device]
        for source, target in copies.within:
            self._words[target] = self._words[source]
        for host, device in copies.ins:
            self._words[device] = self._host[host]

    def clear_tail(self, block_id: int, num_tokens: int) -> None:
        self._finish()
        self._words[block_id, :, num_tokens:] = 0

    def launch(self, plan: StepPlan) -> "SimulatedStep":
        """Computes nothing before somebody waits for it, or for what was launched behind it: the device is late."""
        self._finish()
        self._launched = SimulatedStep(self, plan)
        return self._launched

    def _finish(self) -> None:
        if self._launched is not None:
            self._launched.wait()

    def compute(self, part: "_Part") -> None:
        """One sequence's share of a step."""
        blocks, start = part.blocks, part.start
        before = int(self._words[blocks[(start - 1) // BLOCK], 0, (start - 1) % BLOCK]) if start else 0
        for position, token in enumerate(part.tokens or [self.drawn[part.request.key]], start):
            before = _word(before, token, position)
            self._words[blocks[position // BLOCK], :, position % BLOCK] = before, before ^ _MASK
        if part.sample:
            count = start + part.num_tokens
            kept = self._words[blocks[: -(-count // BLOCK)]]
            keys = kept[:, 0].reshape(-1)[:count]
            values = kept[:, 1].reshape(-1)[:count]
            words = np.where(keys == ~values, keys, np.uint64(1)).tobytes()
            position = count - part.request.num_prompt_tokens
            self.drawn[part.request.key] = _draw(words, part.request.sampling.seed, position)


class _Part(NamedTuple):
    """What a step does for one request, as it was at the launch."""

    request: Request
    start: int
    num_tokens: int
    sample: bool
    blocks: list[int]
    tokens: list[int]  # []: the one that the step before draws


class SimulatedStep:
    """Stands for `StepInFlight`."""

    def __init__(self, runner: SimulatedRunner, plan: StepPlan) -> None:
        self._runner = runner
        self._parts = [_part(request, num_tokens, sample) for request, num_tokens, sample in plan.sequences]
        self._drawn: dict[Key, int] = {}
        self._done = False
        self.requests = [part.request for part in self._parts if part.sample]

    def wait(self) -> None:
        if not self._done:
            self._done = True
            for part in self._parts:
                self._runner.compute(part)
            self._drawn = {request.key: self._runner.drawn[request.key] for request in self.requests}

    def result(self) -> StepResult:
        self.wait()
        return StepResult([self._drawn[request.key] for request in self.requests], {})


def _part(request: Request, num_tokens: int, sample: bool) -> _Part:
    start = request.num_computed_tokens
    tokens = request.tokens[start : start + num_tokens]
    return _Part(request, start, num_tokens, sample, list(request.block_ids), tokens)
