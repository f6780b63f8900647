"""Writing a safetensors file tensor by tensor, so that a model never has to fit into memory.

The format (github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON header padded with spaces
to a multiple of 8, then the tensors' bytes without gaps.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from baton.errors import BatonError, ErrorCode

Float32 = npt.NDArray[np.float32]


def write_float32(file: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, Float32]]) -> None:
    """Writes `tensors`, which must come in the order of `shapes` and with those shapes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        for (name, shape), (got_name, tensor) in zip(shapes.items(), tensors, strict=True):
            assert (got_name, tensor.shape) == (name, shape), f"got {got_name} {tensor.shape}, announced {name} {shape}"
            handle.write(np.ascontiguousarray(tensor, dtype="<f4").data)


def read_header(file: Path) -> dict[str, Any]:
    """The JSON header.

    Raises:
        BatonError: FAILED_PRECONDITION when the file is not safetensors or is cut off inside the header.
    """
    with file.open("rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        try:
            header = json.loads(handle.read(min(size, 100 << 20)))
        except ValueError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION, f"{file} is not a whole safetensors file ({error}); get it again"
            ) from error
    if not isinstance(header, dict):
        raise BatonError(ErrorCode.FAILED_PRECONDITION, f"{file}: got a {type(header).__name__}, expected a header")
    return header


def expected_bytes(file: Path) -> int:
    """How large the file should be by its own header."""
    ends = [entry["data_offsets"][1] for name, entry in read_header(file).items() if name != "__metadata__"]
    with file.open("rb") as handle:
        header_bytes = int.from_bytes(handle.read(8), "little")
    return int(8 + header_bytes + max(ends, default=0))
