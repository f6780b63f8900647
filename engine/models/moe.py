"""The feed-forward part of a layer as a mixture of experts."""

from typing import NamedTuple

import torch
from torch import Tensor

from baton.model_config.moe import MoeSpec
from baton_kernels.moe import fused_moe, route
from engine.models.linear import Linear
from engine.models.norm import RmsNorm
from engine.models.weights import Weights


class ExpertNames(NamedTuple):
    """What a family calls an expert's matrices."""

    gate: str
    up: str
    down: str


class SparseMlp:
    """Each token goes through a few experts; a router chooses and weighs them."""

    def __init__(self, router: Linear, gate_up: Tensor, down: Tensor, spec: MoeSpec) -> None:
        """`gate_up`: [experts, 2 * intermediate, hidden]; `down`: [experts, hidden, intermediate]."""
        self._router, self._gate_up, self._down = router, gate_up, down
        self._per_token, self._normalise = spec.experts_per_token, spec.norm_topk_prob

    def plus(self, x: Tensor, residual: Tensor, norm: RmsNorm | None = None) -> Tensor:
        """mlp(x) + residual, or mlp(norm(x)) + residual; [tokens, hidden] all. May overwrite `residual`."""
        if norm:
            x = norm(x)
        ids, factors = route(self._router(x), self._per_token, self._normalise)
        return residual.add_(fused_moe(x, self._gate_up, self._down, ids, factors))


def sparse_mlp_from(weights: Weights, prefix: str, names: ExpertNames, spec: MoeSpec) -> SparseMlp:
    """Of experts that are stored one by one below `prefix`, beside their router, which is called `gate`."""
    router = weights.linear([prefix + "gate"])
    stacked: list[Tensor] = []
    for matrices in ((names.gate, names.up), (names.down,)):
        experts: Tensor | None = None
        for expert in range(spec.num_experts):  # copied one by one: a list to stack would hold all of them twice
            matrix = torch.cat([weights.take(f"{prefix}experts.{expert}.{name}.weight") for name in matrices])
            if experts is None:
                experts = matrix.new_empty(spec.num_experts, *matrix.shape)
            experts[expert] = matrix
        assert experts is not None
        stacked.append(experts)
    return SparseMlp(router, stacked[0], stacked[1], spec)
