"""RMS norms with their weights."""

from torch import Tensor

from baton_kernels.attn.base import HeadNorm
from baton_kernels.layers import rms_norm
from baton_kernels.linear import Norm


class RmsNorm:
    """Over the whole hidden state."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """`weight`: [hidden], in a dtype as `rms_norm` wants it."""
        self.parts = Norm(weight, eps)  # for products that norm their input themselves

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""
        return rms_norm(x, self.parts.weight, self.parts.eps)


def norm_of_heads(query_weight: Tensor, key_weight: Tensor, heads: int, kv_heads: int, eps: float) -> HeadNorm:
    """Over each head's query or key, before they are rotated; both weights are [head_dim]."""
    weight = query_weight.new_empty(heads + kv_heads, query_weight.shape[0])
    weight[:heads], weight[heads:] = query_weight, key_weight
    return HeadNorm(weight, eps)
