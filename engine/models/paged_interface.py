"""Paged attention in the form in which transformers' modelling code calls an attention function.

A model of transformers computes queries, keys and values and hands them to the function that its configuration names
(`AttentionInterface`), with whatever keyword arguments its caller gave. Ours takes the step that way, so that nothing
about a batch is kept between calls.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from baton.errors import BatonError, ErrorCode
from baton_kernels.attention import PagedBatch, paged_attention, rotate_and_write

NAME = "baton_paged"
# What models pass along that says nothing new to attention over a paged pool: the step knows the positions.
_IGNORED = frozenset(
    {
        *("position_ids", "cache_position", "position_embeddings", "is_causal"),
        *("use_cache", "cache", "past_key_values", "past_key_value", "layer_past"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
    }
)


class PagedStep(NamedTuple):
    """Where one step's KV goes; stands in the place of transformers' cache in models that know only that."""

    pool: Tensor  # [num_blocks, kv_heads, layers, 2, block_size, head_dim]
    batch: PagedBatch
    windows: tuple[int | None, ...]  # by layer: tokens attended to, by config.json; None for all of them
    max_model_len: int  # tokens

    def get_seq_length(self) -> int:
        """As transformers' caches: 0, since tokens in the pool are not the model's to count."""
        return 0


def register() -> None:
    """Makes the function known to transformers under `NAME`. May be called again."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_forward)


def paged_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    baton_step: PagedStep | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Stores the new keys and values of one layer and attends over the pool.

    Args:
        module: the layer's attention module, which has a `layer_idx`
        query: [1, heads, tokens, head_dim]
        key, value: [1, kv_heads, tokens, head_dim]
        scaling: factor on the scores; default: head_dim ** -0.5
        others: `sliding_window` and `softcap` as in `paged_attention`, where the model has them

    Returns:
        [1, tokens, heads, head_dim], and no attention weights

    Raises:
        BatonError: UNIMPLEMENTED when the model asks for more than causal attention.
    """
    if baton_step is None:
        raise unserved("its layers do not pass keyword arguments on to their attention function")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise unserved(f"{type(module).__name__} has no layer_idx")
    if attention_mask is not None:
        raise unserved("it makes an attention mask of its own")
    if not getattr(module, "is_causal", True):
        raise unserved(f"{type(module).__name__} is not causal")
    window, softcap = others.pop("sliding_window", None), others.pop("softcap", None)
    expected = baton_step.windows[layer] if layer < len(baton_step.windows) else None
    if expected is not None and expected < baton_step.max_model_len and window != expected:
        # Such code expresses its windows in the attention mask alone, and there is none here.
        raise unserved(f"config.json gives layer {layer} a window of {expected} tokens, its attention takes {window}")
    for name, extra in {**others, "dropout": dropout}.items():
        if name not in _IGNORED and (isinstance(extra, Tensor) or extra):
            raise unserved(f"its attention takes {name}")
    return attend(layer, query, key, value, baton_step, scaling, window, softcap), None


def attend(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: PagedStep,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """[1, heads, tokens, head_dim] and twice [1, kv_heads, tokens, head_dim] to [1, tokens, heads, head_dim].

    Raises:
        BatonError: UNIMPLEMENTED when keys or values are not of the pool's shape.
    """
    pool, batch = step.pool, step.batch
    kv_heads, layers, head_dim = pool.shape[1], pool.shape[2], pool.shape[5]
    for name, tensor in (("keys", key), ("values", value)):
        if tensor.shape[1] != kv_heads or tensor.shape[3] != head_dim:
            raise unserved(
                f"layer {layer} has {name} of {tensor.shape[1]} heads of {tensor.shape[3]} elements, where the KV pool "
                f"has {kv_heads} heads of {head_dim}"
            )
    if layer >= layers:
        raise unserved(f"it has a layer {layer}, where the KV pool has {layers} layers")
    parts = [part[0].transpose(0, 1) for part in (query, key, value)]  # [tokens, heads, head_dim] each
    qkv = torch.cat(parts, dim=1).to(pool.dtype)
    # The model has rotated by now; an embedding that turns nothing leaves it at that, on every backend.
    cos = torch.ones(qkv.shape[0], head_dim, dtype=qkv.dtype, device=qkv.device)
    queries = rotate_and_write(qkv, cos, torch.zeros_like(cos), pool, layer, batch, query.shape[1])
    scale = head_dim**-0.5 if scaling is None else scaling
    return paged_attention(queries, pool, layer, batch, scale, window, softcap)[None].to(value.dtype)


def unserved(reason: str) -> BatonError:
    """The error for a model whose attention is more than this function computes."""
    return BatonError(ErrorCode.UNIMPLEMENTED, f"{reason}; such a model cannot run on paged attention")
