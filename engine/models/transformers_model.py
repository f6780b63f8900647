"""Models by transformers' modelling code, with its attention on the paged pool.

The whole flattened batch is one sequence to transformers: it computes all that concerns tokens one by one, takes each
one's position from `position_ids`, and has no cache. What concerns several tokens is attention alone, and that is ours.
"""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from baton.errors import BatonError, ErrorCode
from baton_kernels.attention import PagedBatch
from engine.models.base import Model
from engine.models.falcon_bridge import bridge_falcon
from engine.models.paged_interface import NAME, PagedStep

# Models whose modelling code calls no attention function, and what puts them on ours.
BRIDGES = {"FalconForCausalLM": bridge_falcon}


class TransformersModel(Model):
    """Any causal model of transformers that consists of token-wise parts and causal attention."""

    kv_order = f"{Model.kv_order} (transformers)"

    def __init__(self, model: Any, windows: tuple[int | None, ...], max_model_len: int) -> None:
        """Takes over a loaded model; `engine.models.probe` says whether it is of that kind.

        Raises:
            BatonError: UNIMPLEMENTED when the model has no separate head.
        """
        prefix = model.base_model_prefix
        if not isinstance(getattr(model, prefix, None), nn.Module):
            raise BatonError(ErrorCode.UNIMPLEMENTED, f"got {type(model).__name__}, expected a model with a head")
        bridge = BRIDGES.get(type(model).__name__)
        if bridge:
            bridge(model)
        # Also for a bridged model: by this name, transformers makes no attention mask.
        model.config._attn_implementation = NAME
        self._config = model.config
        self._base = getattr(model, prefix)
        self._head = _head_of(model, prefix)
        self._cache_argument = _cache_argument(self._base) if bridge else None
        self._windows, self._max_model_len = windows, max_model_len

    def forward(self, token_ids: Tensor, positions: Tensor, pool: Tensor, batch: PagedBatch) -> Tensor:
        step = PagedStep(pool, batch, self._windows, self._max_model_len)
        given = {self._cache_argument or "baton_step": step}
        out = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **given)
        hidden: Tensor = out[0][0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].float()

    def own_forward(self, token_ids: Tensor) -> Tensor | None:
        """[tokens, hidden] of one sequence by transformers' own attention; None for a model that has lost it."""
        if self._cache_argument:
            return None
        self._config._attn_implementation = "eager"
        try:
            positions = torch.arange(token_ids.shape[0], device=token_ids.device)
            out = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
            hidden: Tensor = out[0][0]
        finally:
            self._config._attn_implementation = NAME
        return hidden


class _Output:
    """What a base model returns, as far as a head can want it: hidden states, and None by any other name."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _Given(nn.Module):
    """Stands where a causal model calls its base model, and answers with the hidden states that it was given."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **others: Any) -> _Output:
        return _Output(inputs_embeds)

    @property
    def decoder(self) -> "_Given":
        """Itself: some models call a part of their base model by this name."""
        return self


def _head_of(model: Any, prefix: str) -> Any:
    """The model's own code behind its base model, whatever it does to logits; the weights are shared."""
    head = copy.copy(model)
    head._modules = {**model._modules, prefix: _Given()}
    return head


def _cache_argument(base: Any) -> str:
    """What this transformers calls the argument for a cache."""
    parameters = inspect.signature(base.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
