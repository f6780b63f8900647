"""A model folder's safetensors, read tensor by tensor onto the device in the wanted dtype."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from baton.errors import BatonError, ErrorCode
from engine.models.linear import Linear


class Weights:
    """Tensors by name; each is taken once, so that `check_all_taken` can tell a misread model from a right one."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Opens every *.safetensors file; reads nothing yet.

        Raises:
            BatonError: NOT_FOUND when the folder has none.
        """
        self._dtype, self._device = dtype, device
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise BatonError(
                ErrorCode.NOT_FOUND, f"no *.safetensors in {folder}; convert the weights, or run `baton fetch`"
            )
        self._files = [safe_open(file, framework="pt") for file in files]
        self._file_of = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118
        self._folder = folder

    def take(self, name: str) -> Tensor:
        """One tensor.

        Raises:
            BatonError: FAILED_PRECONDITION when the folder has no such tensor.
        """
        file = self._file_of.pop(name, None)
        if file is None:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION, f"{self._folder} has no tensor {name}, which its config.json implies"
            )
        tensor: Tensor = file.get_tensor(name)
        return tensor.to(device=self._device, dtype=self._dtype)

    def linear(self, prefixes: Sequence[str], bias: bool = False) -> Linear:
        """Projections that share an input, stacked into one: [sum of outs, in]."""
        weight = torch.cat([self.take(prefix + ".weight") for prefix in prefixes])
        return Linear(weight, torch.cat([self.take(prefix + ".bias") for prefix in prefixes]) if bias else None)

    def check_all_taken(self) -> None:
        """Refuses to serve a model of which a part was ignored.

        Raises:
            BatonError: FAILED_PRECONDITION with the names that are left over.
        """
        # Written by older exporters; derived from the configuration here.
        left = sorted(name for name in self._file_of if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"{self._folder} has {len(left)} tensors that this model code does not use, such as {left[0]}",
            )
