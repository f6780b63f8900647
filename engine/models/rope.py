"""A model's rotary embeddings as tables on its device."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.errors import BatonError, ErrorCode
from baton.model_config.rope import RopeSpec
from baton_kernels import rope
from baton_kernels.layers import rotation_table

Rotation = tuple[Tensor, Tensor]  # cosines and sines, [tokens, head_dim] each

_FREQUENCIES: dict[str, Callable[[RopeSpec, int, int], Tensor]] = {
    "default": lambda spec, dim, _: rope.default(dim, spec.theta),
    "linear": lambda spec, dim, _: rope.linear(dim, spec.theta, spec.factor),
    "dynamic": lambda spec, dim, length: rope.dynamic(dim, spec.theta, spec.factor, spec.original_max_position, length),
    "longrope": lambda spec, dim, length: rope.longrope(
        dim, spec.theta, spec.long_factors if spec.variant(length) == "long" else spec.short_factors
    ),
    "llama3": lambda spec, dim, _: rope.llama3(
        dim, spec.theta, spec.factor, spec.low_freq_factor, spec.high_freq_factor, spec.original_max_position
    ),
    "yarn": lambda spec, dim, _: rope.yarn(
        dim, spec.theta, spec.factor, spec.original_max_position, spec.beta_fast, spec.beta_slow, spec.truncate
    ),
}


def frequencies(spec: RopeSpec, head_dim: int, max_model_len: int) -> Tensor:
    """[rotated elements / 2] float32 radians a position.

    Raises:
        BatonError: FAILED_PRECONDITION for a type that is not known, or that lacks its parameters.
    """
    if spec.type not in _FREQUENCIES:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"config.json: got rope_type = {spec.type!r}, expected one of {', '.join(_FREQUENCIES)}; "
            "this version cannot serve such a model",
        )
    dim = rotated(spec, head_dim)
    if spec.type == "longrope" and not len(spec.short_factors) == len(spec.long_factors) == dim // 2:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"config.json: got {len(spec.short_factors)} rope factors in short_factor and {len(spec.long_factors)} in "
            f"long_factor, expected {dim // 2}: one for each two of the {dim} rotated elements of a head",
        )
    return _FREQUENCIES[spec.type](spec, dim, max_model_len)


def rotated(spec: RopeSpec, head_dim: int) -> int:
    """How many of a head's elements are rotated."""
    return int(head_dim * spec.rotary_share)


class Rotations:
    """Cosines and sines for every position, of each embedding that a model has."""

    def __init__(
        self,
        specs: Sequence[RopeSpec],
        head_dim: int,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """
        Raises:
            BatonError: FAILED_PRECONDITION for an embedding that is not known.
        """
        self._tables: list[Rotation] = []
        for spec in specs:
            unrotated = head_dim - rotated(spec, head_dim)
            waves = frequencies(spec, head_dim, max_model_len).to(device)
            cos, sin = rotation_table(waves, max_model_len, spec.attention_factor, unrotated)
            self._tables.append((cos.to(dtype), sin.to(dtype)))

    def at(self, positions: Tensor) -> tuple[Rotation, ...]:
        """The rows for [tokens] int64 positions, by embedding."""
        return tuple((cos[positions], sin[positions]) for cos, sin in self._tables)
