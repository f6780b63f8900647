"""RMS norms with their weights."""

from torch import Tensor

from baton_kernels.layers import norm_heads, rms_norm


class RmsNorm:
    """Over the whole hidden state."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """`weight`: [hidden], in a dtype as `rms_norm` wants it."""
        self._weight, self._eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""
        return rms_norm(x, self._weight, self._eps)


class HeadNorm:
    """Over each head's query or key, before they are rotated."""

    def __init__(self, query_weight: Tensor, key_weight: Tensor, heads: int, kv_heads: int, eps: float) -> None:
        """Both weights: [head_dim]."""
        self._weight = query_weight.new_empty(heads + kv_heads, query_weight.shape[0])
        self._weight[:heads], self._weight[heads:] = query_weight, key_weight
        self._eps = eps

    def __call__(self, qkv: Tensor) -> None:
        """Norms queries and keys of [tokens, heads + 2 * kv_heads, head_dim] in place."""
        norm_heads(qkv[:, : self._weight.shape[0]], self._weight, self._eps)
