"""A decoder out of parts: embedding, layers, last norm, head. What families share; they differ in the layers."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from baton.model_spec import ModelSpec
from baton_kernels.attention import PagedBatch
from engine.models.attention import Attention
from engine.models.base import Model
from engine.models.linear import Linear
from engine.models.mlp import Mlp
from engine.models.norm import RmsNorm
from engine.models.rope import Rotation, Rotations
from engine.models.weights import Weights


class Layer(Protocol):
    """One transformer block."""

    def forward(self, x: Tensor, rotations: Sequence[Rotation], pool: Tensor, batch: PagedBatch) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]; may overwrite `x`."""


class PreNormLayer:
    """A norm before attention and a norm before the MLP, the residual added behind each."""

    def __init__(self, input_norm: RmsNorm, attention: Attention, mlp_norm: RmsNorm, mlp: Mlp) -> None:
        self._input_norm, self._attention, self._mlp_norm, self._mlp = input_norm, attention, mlp_norm, mlp

    def forward(self, x: Tensor, rotations: Sequence[Rotation], pool: Tensor, batch: PagedBatch) -> Tensor:
        attended = self._attention(x, rotations, pool, batch, self._input_norm)
        x = self._attention.out.plus(attended, x)
        return self._mlp.plus(x, x, self._mlp_norm)


def pre_norm_layer_from(spec: ModelSpec, weights: Weights, index: int, attention: Attention, mlp: Mlp) -> PreNormLayer:
    """With the names that most families give the two norms."""
    prefix = f"model.layers.{index}."
    return PreNormLayer(
        plain_norm(spec, weights, prefix + "input_layernorm.weight"),
        attention,
        plain_norm(spec, weights, prefix + "post_attention_layernorm.weight"),
        mlp,
    )


def plain_norm(spec: ModelSpec, weights: Weights, name: str) -> RmsNorm:
    """The norm whose weight is the tensor `name`."""
    return RmsNorm(weights.take(name), spec.norm_eps)


class Decoder(Model):
    """Token ids to hidden states to logits."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        max_model_len: int,
        make_layer: Callable[[ModelSpec, Weights, int], Layer],
        make_norm: Callable[[ModelSpec, Weights, str], RmsNorm] = plain_norm,
    ) -> None:
        self._embedding = weights.take("model.embed_tokens.weight")
        self._layers = [make_layer(spec, weights, index) for index in range(spec.num_layers)]
        self._norm = make_norm(spec, weights, "model.norm.weight")
        self._head = Linear(self._embedding if spec.tie_word_embeddings else weights.take("lm_head.weight"))
        ropes = (spec.rope, spec.local_rope) if spec.local_rope else (spec.rope,)
        dtype, device = self._embedding.dtype, self._embedding.device
        self._rotations = Rotations(ropes, spec.head_dim, max_model_len, dtype, device)

    def forward(self, token_ids: Tensor, positions: Tensor, pool: Tensor, batch: PagedBatch) -> Tensor:
        x = self._embed(token_ids)
        rotations = self._rotations.at(positions)
        for layer in self._layers:
            x = layer.forward(x, rotations, pool, batch)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.as_logits(self.scores(hidden))

    def scores(self, hidden: Tensor) -> Tensor:
        return self._head(hidden, self._norm)

    def as_logits(self, scores: Tensor) -> Tensor:
        return scores.float()

    def _embed(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._embedding)
