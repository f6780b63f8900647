"""Where each tensor of a model folder's safetensors lies: file, type, shape and bytes, from the headers alone."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from baton.errors import BatonError, ErrorCode
from baton.safetensors_file import expected_bytes, read_header

_INDEX = "model.safetensors.index.json"
# The format's names for what torch can hold and a model can be stored in.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class StoredTensor(NamedTuple):
    """One tensor in a file."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # bytes from the file's beginning


def read_checkpoint(folder: Path) -> dict[str, StoredTensor]:
    """All tensors by name: those that the index lists, where the folder has one, else those of every *.safetensors.

    Raises:
        BatonError: NOT_FOUND when the folder has no weights, FAILED_PRECONDITION naming a file that is missing, cut
            off, or lacks a tensor that the index says is in it.
    """
    index = folder / _INDEX
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise BatonError(
                ErrorCode.NOT_FOUND,
                f"no *.safetensors in {folder}; convert the weights, run `baton fetch`, or take --load-format dummy",
            )
        return {name: tensor for file in files for name, tensor in _tensors(file).items()}
    file_of = _weight_map(index)
    shards = {name: _tensors(folder / name) for name in sorted(set(file_of.values()))}
    for name, shard in file_of.items():
        if name not in shards[shard]:
            raise _broken(folder / shard, f"has no tensor {name}, which {_INDEX} says is in it")
    return {name: shards[shard][name] for name, shard in file_of.items()}


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise _broken(index, f"is not an index of safetensors ({error!r})") from error
    return weight_map


def _tensors(file: Path) -> dict[str, StoredTensor]:
    if not file.is_file():
        raise _broken(file, "is missing")
    header = read_header(file)
    size, wanted = file.stat().st_size, expected_bytes(file)
    if size != wanted:
        raise _broken(file, f"has {size} bytes, expected {wanted}")
    with file.open("rb") as handle:
        data_start = 8 + int.from_bytes(handle.read(8), "little")
    return {name: _tensor(file, name, entry, data_start) for name, entry in header.items() if name != "__metadata__"}


def _tensor(file: Path, name: str, entry: dict[str, Any], data_start: int) -> StoredTensor:
    if entry["dtype"] not in _DTYPES:
        raise _broken(file, f"has {name} as {entry['dtype']}, expected one of {', '.join(_DTYPES)}")
    start, end = entry["data_offsets"]
    tensor = StoredTensor(file, _DTYPES[entry["dtype"]], tuple(entry["shape"]), data_start + start)
    num_bytes = torch.Size(tensor.shape).numel() * tensor.dtype.itemsize
    if end - start != num_bytes:
        raise _broken(file, f"has {end - start} bytes for {name}, expected {num_bytes}")
    return tensor


def _broken(file: Path, problem: str) -> BatonError:
    return BatonError(ErrorCode.FAILED_PRECONDITION, f"{file} {problem}; copy all files of the model again")
