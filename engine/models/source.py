"""Where a model's tensors come from: a folder's safetensors, or nowhere."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from baton.load_options import LoadFormat
from baton.model_spec import ModelSpec
from engine.models.checkpoint import read_checkpoint
from engine.models.dummy import dummy_tensor
from engine.models.shapes import Shape, shape_of
from engine.models.staged_reader import StagedReader


class TensorSource(ABC):
    """Tensors by name, read when asked for, one at a time."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names  # of all tensors, where there is a list of them

    @abstractmethod
    def shape(self, name: str) -> Shape | None:
        """None when there is no such tensor."""

    @abstractmethod
    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor on the source's device. It may share memory with a file and must not be written to."""

    @abstractmethod
    def read_into(self, name: str, out: Tensor) -> None:
        """Writes a tensor to `out`, which has its shape, is contiguous, and is on the source's device."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what reading takes. May be called twice."""


class MappedSource(TensorSource):
    """Safetensors for the CPU: files are mapped, so that a tensor of the wanted type takes no memory of its own."""

    def __init__(self, folder: Path) -> None:
        """Reads the headers.

        Raises:
            BatonError: as `read_checkpoint`.
        """
        self._stored = read_checkpoint(folder)
        files = {tensor.file for tensor in self._stored.values()}
        self._files = {file: safe_open(file, framework="pt") for file in files}
        super().__init__(self._stored)

    def shape(self, name: str) -> Shape | None:
        return self._stored[name].shape if name in self._stored else None

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor: Tensor = self._files[self._stored[name].file].get_tensor(name)
        return tensor.to(dtype)

    def read_into(self, name: str, out: Tensor) -> None:
        out.copy_(self._files[self._stored[name].file].get_tensor(name))

    def close(self) -> None:
        self._files.clear()  # a tensor that was read keeps its file mapped


class StagedSource(TensorSource):
    """Safetensors for a GPU: read by several threads, converted on the device."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Reads the headers.

        Raises:
            BatonError: as `read_checkpoint`.
        """
        self._device = device
        self._stored = read_checkpoint(folder)
        self._reader = StagedReader(device)
        super().__init__(self._stored)

    def shape(self, name: str) -> Shape | None:
        return self._stored[name].shape if name in self._stored else None

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        out = torch.empty(self._stored[name].shape, dtype=dtype, device=self._device)
        self.read_into(name, out)
        return out

    def read_into(self, name: str, out: Tensor) -> None:
        stored = self._stored[name]
        same = stored.dtype == out.dtype
        raw = out if same else torch.empty(stored.shape, dtype=stored.dtype, device=self._device)
        self._reader.read_into(stored.file, stored.start, raw)
        if not same:
            out.copy_(raw)

    def close(self) -> None:
        self._reader.close()


class DummySource(TensorSource):
    """Random tensors under whatever names the model asks for."""

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        super().__init__(())
        self._spec = spec
        self._device = device

    def shape(self, name: str) -> Shape | None:
        return shape_of(self._spec, name)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        shape = self.shape(name)
        assert shape is not None, f"no shape for {name}"
        return dummy_tensor(name, shape, dtype, self._device)

    def read_into(self, name: str, out: Tensor) -> None:
        out.copy_(self.read(name, out.dtype))

    def close(self) -> None:
        return


def open_source(spec: ModelSpec, device: torch.device, load_format: LoadFormat) -> TensorSource:
    """The source for a load format.

    Raises:
        BatonError: as `read_checkpoint`.
    """
    if load_format is LoadFormat.DUMMY:
        return DummySource(spec, device)
    folder = Path(spec.path)
    return MappedSource(folder) if device.type == "cpu" else StagedSource(folder, device)
