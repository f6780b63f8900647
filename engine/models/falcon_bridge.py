"""Falcon's attention on the paged pool: transformers' code for it computes attention itself and takes no function."""

from typing import Any

import torch
from torch import Tensor, nn

from engine.models.paged_interface import PagedStep, attend, unserved


class PagedFalconAttention(nn.Module):
    """In place of one FalconAttention, whose projections it uses; the step comes as the layer's cache."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.query_key_value, self.dense = original.query_key_value, original.dense
        self._layer, self._heads, self._head_dim = original.layer_idx, original.num_heads, original.head_dim
        if original.new_decoder_architecture:
            self._groups = original.num_kv_heads
        else:
            self._groups = 1 if original.multi_query else original.num_heads

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        layer_past: PagedStep,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """[1, tokens, hidden] to the same; `others` is what only masks and caches need."""
        from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb

        query, key, value = (part.transpose(1, 2) for part in self._split(self.query_key_value(hidden_states)))
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        attended = attend(self._layer, query, key, value, layer_past)  # [1, tokens, heads, head_dim]
        return self.dense(attended.flatten(2)), None

    def _split(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[1, tokens, out] to queries, keys and values [1, tokens, heads, head_dim].

        In all of its variants, the queries of a KV head stand before that head's key and its value.
        """
        parts = fused.unflatten(-1, (self._groups, self._heads // self._groups + 2, self._head_dim))
        return parts[..., :-2, :].flatten(2, 3), parts[..., -2, :], parts[..., -1, :]


def bridge_falcon(model: Any) -> None:
    """Puts every layer of a FalconForCausalLM on paged attention.

    Raises:
        BatonError: UNIMPLEMENTED for a Falcon with ALiBi.
    """
    if model.config.alibi:
        raise unserved("it has alibi, a bias on the scores by distance")
    with torch.no_grad():
        for block in model.transformer.h:
            block.self_attention = PagedFalconAttention(block.self_attention)
