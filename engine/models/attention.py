"""One layer's attention: projections, rotary embedding, the paged pool."""

from collections.abc import Sequence

from torch import Tensor

from baton.model_spec import ModelSpec
from baton_kernels.attention import PagedBatch, paged_attention, rotate_and_write
from baton_kernels.attn.base import HeadNorm
from engine.models.linear import Linear
from engine.models.norm import RmsNorm
from engine.models.rope import Rotation
from engine.models.weights import Weights


class Attention:
    """Grouped-query attention; queries, keys and values come out of one product."""

    def __init__(
        self, spec: ModelSpec, index: int, qkv: Linear, out: Linear, head_norm: HeadNorm | None = None
    ) -> None:
        self.out = out  # for the caller: what comes behind the last product differs
        self._qkv, self._head_norm = qkv, head_norm
        self._index = index
        self._heads, self._head_dim = spec.num_heads, spec.head_dim
        self._scale, self._window, self._softcap = spec.query_scale, spec.windows[index], spec.attention_softcap
        self._rope = int(spec.local_rope is not None and self._window is not None)  # as `Decoder` orders them

    def __call__(
        self,
        x: Tensor,
        rotations: Sequence[Rotation],
        pool: Tensor,
        batch: PagedBatch,
        norm: RmsNorm | None = None,
    ) -> Tensor:
        """[tokens, hidden] to [tokens, heads * head_dim]: what goes into `out`. With a norm, of the normed `x`."""
        tokens = x.shape[0]
        qkv = self._qkv(x, norm).view(tokens, -1, self._head_dim)
        cos, sin = rotations[self._rope]
        queries = rotate_and_write(qkv, cos, sin, pool, self._index, batch, self._heads, self._head_norm)
        attended = paged_attention(queries, pool, self._index, batch, self._scale, self._window, self._softcap)
        return attended.view(tokens, -1)


def attention_from(
    spec: ModelSpec,
    weights: Weights,
    index: int,
    qkv_bias: bool = False,
    out_bias: bool = False,
    head_norm: HeadNorm | None = None,
) -> Attention:
    """Of projections that are stored one by one, under the names that most families share."""
    prefix = f"model.layers.{index}.self_attn."
    qkv = weights.linear([prefix + name for name in ("q_proj", "k_proj", "v_proj")], bias=qkv_bias)
    return Attention(spec, index, qkv, weights.linear([prefix + "o_proj"], bias=out_bias), head_norm)
