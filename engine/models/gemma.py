"""Gemma 2 and 3: norms on both sides of each part, scaled embeddings, capped logits; windows in most layers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.model_spec import ModelSpec
from baton_kernels.attention import PagedBatch
from baton_kernels.attn.base import HeadNorm
from engine.models.attention import Attention, attention_from
from engine.models.decoder import Decoder
from engine.models.mlp import GatedMlp, StackedMlp, gated_mlp_from
from engine.models.norm import RmsNorm, norm_of_heads
from engine.models.rope import Rotation
from engine.models.weights import Weights


class SandwichLayer:
    """Attention and MLP each have a norm before and a norm behind them; the residual is added last."""

    def __init__(self, norms: Sequence[RmsNorm], attention: Attention, mlp: GatedMlp | StackedMlp) -> None:
        """`norms`: before and behind attention, before and behind the MLP."""
        self._before_attention, self._behind_attention, self._before_mlp, self._behind_mlp = norms
        self._attention, self._mlp = attention, mlp

    def forward(self, x: Tensor, rotations: Sequence[Rotation], pool: Tensor, batch: PagedBatch) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]; may overwrite `x`."""
        attended = self._attention(self._before_attention(x), rotations, pool, batch)
        x = x.add_(self._behind_attention(self._attention.out(attended)))
        return x.add_(self._behind_mlp(self._mlp(self._before_mlp(x))))


class GemmaDecoder(Decoder):
    """Embeddings times the square root of their length, and logits that cannot pass a cap."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        max_model_len: int,
        make_layer: Callable[[ModelSpec, Weights, int], SandwichLayer],
    ) -> None:
        super().__init__(spec, weights, max_model_len, make_layer, _norm)
        # In the embedding's dtype, which rounds it in bfloat16: so the models were trained.
        self._embedding_scale = torch.tensor(spec.hidden_size**0.5, dtype=self._embedding.dtype)
        self._softcap = spec.logit_softcap

    def as_logits(self, scores: Tensor) -> Tensor:
        logits = super().as_logits(scores)
        if self._softcap is None:
            return logits
        return logits.div_(self._softcap).tanh_().mul_(self._softcap)

    def _embed(self, token_ids: Tensor) -> Tensor:
        return super()._embed(token_ids) * self._embedding_scale


def load_gemma2(spec: ModelSpec, weights: Weights, max_model_len: int) -> GemmaDecoder:
    """Gemma2ForCausalLM."""
    return GemmaDecoder(spec, weights, max_model_len, _layer)


def load_gemma3(spec: ModelSpec, weights: Weights, max_model_len: int) -> GemmaDecoder:
    """Gemma3ForCausalLM."""
    return GemmaDecoder(spec, weights, max_model_len, _layer_with_head_norm)


def _layer(spec: ModelSpec, weights: Weights, index: int, head_norm: HeadNorm | None = None) -> SandwichLayer:
    prefix, bias = f"model.layers.{index}.", spec.attention_bias
    names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    return SandwichLayer(
        [_norm(spec, weights, f"{prefix}{name}_layernorm.weight") for name in names],
        attention_from(spec, weights, index, qkv_bias=bias, out_bias=bias, head_norm=head_norm),
        gated_mlp_from(weights, index, spec.activation),
    )


def _layer_with_head_norm(spec: ModelSpec, weights: Weights, index: int) -> SandwichLayer:
    prefix = f"model.layers.{index}.self_attn."
    query_weight, key_weight = (_norm_weight(weights, prefix + name) for name in ("q_norm.weight", "k_norm.weight"))
    head_norm = norm_of_heads(query_weight, key_weight, spec.num_heads, spec.num_kv_heads, spec.norm_eps)
    return _layer(spec, weights, index, head_norm)


def _norm(spec: ModelSpec, weights: Weights, name: str) -> RmsNorm:
    return RmsNorm(_norm_weight(weights, name), spec.norm_eps)


def _norm_weight(weights: Weights, name: str) -> Tensor:
    """Stored less 1, and added to it in float32: 1 + w has few digits left for w in bfloat16."""
    return weights.take(name).float() + 1.0
