"""The Llama family (Llama, SmolLM2): pre-norm blocks of grouped-query attention with rotary embedding, and SwiGLU."""

import torch.nn.functional as F
from torch import Tensor

from baton.model_spec import ModelSpec
from baton_kernels.attention import PagedBatch, paged_attention, rotate_and_write
from baton_kernels.layers import rms_norm, rope_table
from engine.models.base import Model
from engine.models.linear import Linear
from engine.models.weights import Weights


class LlamaLayer:
    """One transformer block; queries, keys and values come out of one product."""

    def __init__(self, spec: ModelSpec, weights: Weights, index: int) -> None:
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        self.index = index
        self.heads, self.kv_heads, self.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.eps = spec.norm_eps
        self.scale = spec.head_dim**-0.5
        self.input_norm = weights.take(prefix + "input_layernorm.weight")
        self.mlp_norm = weights.take(prefix + "post_attention_layernorm.weight")
        qkv = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
        self.qkv = weights.linear(qkv, bias=spec.attention_bias)
        self.out = weights.linear([attention + "o_proj"], bias=spec.attention_bias)
        self.gate = weights.linear([mlp + "gate_proj"])
        self.up = weights.linear([mlp + "up_proj"])
        self.down = weights.linear([mlp + "down_proj"])

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, pool: Tensor, batch: PagedBatch) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]; may overwrite `x`."""
        tokens = x.shape[0]
        qkv = self.qkv(rms_norm(x, self.input_norm, self.eps)).view(tokens, -1, self.head_dim)
        queries = rotate_and_write(qkv, cos, sin, pool, self.index, batch, self.heads)
        attended = paged_attention(queries, pool, self.index, batch, self.scale)
        x = self.out.plus(attended.view(tokens, -1), x)
        normed = rms_norm(x, self.mlp_norm, self.eps)
        return self.down.plus(self.up.times(normed, self.gate.silu(normed)), x)


class Llama(Model):
    """LlamaForCausalLM."""

    def __init__(self, spec: ModelSpec, weights: Weights, max_model_len: int) -> None:
        self._eps = spec.norm_eps
        self._embedding = weights.take("model.embed_tokens.weight")
        self._layers = [LlamaLayer(spec, weights, index) for index in range(spec.num_layers)]
        self._norm = weights.take("model.norm.weight")
        head = self._embedding if spec.tie_word_embeddings else weights.take("lm_head.weight")
        self._head = Linear(head)
        device, dtype = self._embedding.device, self._embedding.dtype
        cos, sin = rope_table(max_model_len, spec.head_dim, spec.rope.theta, device)
        self._cos, self._sin = cos.to(dtype), sin.to(dtype)

    def forward(self, token_ids: Tensor, positions: Tensor, pool: Tensor, batch: PagedBatch) -> Tensor:
        x = F.embedding(token_ids, self._embedding)
        cos, sin = self._cos[positions], self._sin[positions]
        for layer in self._layers:
            x = layer.forward(x, cos, sin, pool, batch)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(rms_norm(hidden, self._norm, self._eps)).float()
