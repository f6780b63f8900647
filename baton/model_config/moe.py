"""The mixture of experts that config.json describes."""

from typing import Any

import msgspec


class MoeSpec(msgspec.Struct, frozen=True):
    """Experts of a decoder; sizes in elements."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int  # of one expert
    norm_topk_prob: bool  # whether the chosen experts' probabilities are made to add up to 1
    layers: tuple[int, ...]  # those with experts; the others have one dense MLP


def read_moe(config: dict[str, Any]) -> MoeSpec | None:
    """None for a dense model."""
    if not config.get("num_experts"):
        return None
    dense = config.get("mlp_only_layers") or ()
    step = config.get("decoder_sparse_step") or 1
    return MoeSpec(
        num_experts=config["num_experts"],
        experts_per_token=config["num_experts_per_tok"],
        intermediate_size=config.get("moe_intermediate_size") or config["intermediate_size"],
        norm_topk_prob=bool(config.get("norm_topk_prob", True)),
        layers=tuple(i for i in range(config["num_hidden_layers"]) if i not in dense and (i + 1) % step == 0),
    )
