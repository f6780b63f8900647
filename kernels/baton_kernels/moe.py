"""Mixture of experts: which experts a token goes to, and their MLPs. The torch path, which is the specification."""

import torch.nn.functional as F
from torch import Tensor


def route(logits: Tensor, experts_per_token: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """Chooses the experts with the highest probabilities.

    Args:
        logits: [tokens, experts]
        normalise: the chosen probabilities are made to add up to 1, which makes them the softmax over the chosen alone

    Returns:
        [tokens, experts_per_token] int64 expert ids, and their weights in logits' dtype
    """
    weights, ids = logits.float().softmax(dim=-1).topk(experts_per_token, dim=-1)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return ids, weights.to(logits.dtype)


def fused_moe(x: Tensor, gate_up: Tensor, down: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
    """The weighted sum of each token's experts, which are MLPs of the form down(silu(gate(x)) * up(x)).

    Tokens are sorted by expert, so that each expert that any token goes to takes part in one product a matrix.

    Args:
        x: [tokens, hidden]
        gate_up: [experts, 2 * intermediate, hidden], the gate's rows first
        down: [experts, hidden, intermediate]
        topk_ids: [tokens, experts_per_token] int64
        topk_weights: [tokens, experts_per_token] in x's dtype

    Returns:
        [tokens, hidden]
    """
    tokens, per_token = topk_ids.shape
    experts = topk_ids.flatten()
    order = experts.argsort(stable=True)  # [tokens * per_token] places in `experts`, grouped by expert
    counts = experts.bincount(minlength=gate_up.shape[0]).tolist()
    rows = x.index_select(0, order // per_token)
    out = x.new_empty(tokens * per_token, x.shape[1])
    first = 0
    for expert, count in enumerate(counts):
        if count:
            group = slice(first, first + count)
            gate, up = F.linear(rows[group], gate_up[expert]).chunk(2, dim=-1)
            out[order[group]] = F.linear(F.silu(gate).mul_(up), down[expert])
            first += count
    return (out.view(tokens, per_token, -1) * topk_weights[..., None]).sum(dim=1)
