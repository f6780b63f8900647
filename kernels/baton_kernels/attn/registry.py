"""Makes an attention backend by name, importing only the one that was asked for."""

from torch import Tensor

from baton_kernels.attn.base import AttentionBackend

BACKENDS = ("auto", "torch", "triton")


def make_attention(
    backend: str, pool: Tensor, heads: int, max_tokens: int, max_seqs: int, max_context: int
) -> AttentionBackend:
    """A backend for `pool` [num_blocks, kv_heads, layers, 2, block_size, head_dim]; `auto` is triton on a GPU.

    Args:
        heads: query heads
        max_tokens, max_seqs: of one step
        max_context: tokens of one sequence

    Raises:
        ValueError: an unknown name, or a pool that the backend cannot serve.
    """
    name = backend if backend != "auto" else "triton" if pool.is_cuda else "torch"
    if name == "torch":
        from baton_kernels.attn.paged_torch import TorchAttention

        return TorchAttention(pool)
    if name == "triton":
        from baton_kernels.attn.paged_triton import Limits, TritonAttention
        from baton_kernels.gpu.attention_configs import find_configs

        limits = Limits(max_tokens, max_seqs, max_context)
        return TritonAttention(pool, heads, limits, find_configs(pool, heads))
    raise ValueError(f"attention backend: got {backend!r}, expected one of {', '.join(BACKENDS)}")
