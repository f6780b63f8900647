"""The dense feed-forward part of a layer."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from baton.errors import BatonError, ErrorCode
from engine.models.linear import Linear
from engine.models.norm import RmsNorm
from engine.models.weights import Weights

_ACTIVATIONS: dict[str, Callable[[Linear, Tensor], Tensor]] = {
    "silu": Linear.silu,
    "gelu_pytorch_tanh": Linear.gelu_tanh,
}


class Mlp(Protocol):
    """What stands behind a layer's second norm: dense, or a mixture of experts."""

    def plus(self, x: Tensor, residual: Tensor, norm: RmsNorm | None = None) -> Tensor:
        """mlp(x) + residual, or mlp(norm(x)) + residual; [tokens, hidden] all. May overwrite `residual`."""


class GatedMlp:
    """down(activation(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, gate: Linear, up: Linear, down: Linear, activation: str) -> None:
        """
        Raises:
            BatonError: FAILED_PRECONDITION for an activation that is not known.
        """
        if activation not in _ACTIVATIONS:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"config.json: got hidden_act = {activation!r}, expected one of {', '.join(_ACTIVATIONS)}; "
                "this version cannot serve such a model",
            )
        self._gate, self._up, self._down = gate, up, down
        self._activation = _ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""
        return self._down(self._inner(x))

    def plus(self, x: Tensor, residual: Tensor, norm: RmsNorm | None = None) -> Tensor:
        return self._down.plus(self._inner(norm(x) if norm else x), residual)

    def _inner(self, x: Tensor) -> Tensor:
        return self._up.times(x, self._activation(self._gate, x))


class StackedMlp:
    """`GatedMlp` with silu where gate and up are one product: on a GPU, which so has fewer launches."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up, self._down = gate_up, down

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""
        return self._down(self._gate_up.gated(x))

    def plus(self, x: Tensor, residual: Tensor, norm: RmsNorm | None = None) -> Tensor:
        return self._down.plus(self._gate_up.gated(x, norm), residual)


def gated_mlp_from(weights: Weights, index: int, activation: str, bias: bool = False) -> GatedMlp | StackedMlp:
    """Of projections that are stored one by one, under the names that most families share."""
    prefix = f"model.layers.{index}.mlp."
    if weights.device.type == "cuda" and activation == "silu" and not bias:
        gate_up = weights.linear([prefix + "gate_proj", prefix + "up_proj"])
        return StackedMlp(gate_up, weights.linear([prefix + "down_proj"]))
    gate, up, down = (weights.linear([prefix + name], bias) for name in ("gate_proj", "up_proj", "down_proj"))
    return GatedMlp(gate, up, down, activation)
