"""A model's tensors, taken one by one onto the device in the wanted dtype, and checked against its configuration."""

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec
from engine.models.linear import Linear
from engine.models.shapes import Shape, shape_of
from engine.models.source import TensorSource


class Weights:
    """Tensors by name; each is taken once, so that `check_all_taken` can tell a misread model from a right one."""

    def __init__(self, source: TensorSource, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        """Reads nothing yet."""
        self._source, self._spec = source, spec
        self._dtype, self.device = dtype, device
        self._left = set(source.names)

    def take(self, name: str) -> Tensor:
        """One tensor. It may be a file's memory: not to be written to.

        Raises:
            BatonError: FAILED_PRECONDITION when there is no such tensor, or one of another shape.
        """
        self._check(name)
        return self._source.read(name, self._dtype)

    def linear(self, prefixes: Sequence[str], bias: bool = False) -> Linear:
        """Projections that share an input, stacked into one: [sum of outs, in]."""
        weight = self._stacked([prefix + ".weight" for prefix in prefixes])
        return Linear(weight, self._stacked([prefix + ".bias" for prefix in prefixes]) if bias else None)

    def check_all_taken(self) -> None:
        """Refuses to serve a model of which a part was ignored.

        Raises:
            BatonError: FAILED_PRECONDITION with the names that are left over.
        """
        # Written by older exporters; derived from the configuration here.
        left = sorted(name for name in self._left if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"{self._spec.path} has {len(left)} tensors that this model code does not use, such as {left[0]}",
            )

    def _stacked(self, names: Sequence[str]) -> Tensor:
        """Tensors one above the other, each read to its place."""
        if len(names) == 1:
            return self.take(names[0])
        shapes = [self._check(name) for name in names]
        out = torch.empty((sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype=self._dtype, device=self.device)
        for name, part in zip(names, out.split([shape[0] for shape in shapes]), strict=True):
            self._source.read_into(name, part)
        return out

    def _check(self, name: str) -> Shape:
        got, expected = self._source.shape(name), shape_of(self._spec, name)
        if got is None:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION, f"{self._spec.path} has no tensor {name}, which its config.json implies"
            )
        if expected is not None and got != expected:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"{self._spec.path}: got {name} of shape {list(got)}, expected {list(expected)} by its config.json; "
                "give weights and config.json of one model",
            )
        self._left.discard(name)
        return got
