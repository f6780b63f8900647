"""Checking that a folder holds a model that Baton can serve."""

import json
from pathlib import Path

from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec, load_model_spec
from baton.safetensors_file import expected_bytes


def validate_folder(folder: Path) -> ModelSpec:
    """Reads config.json and checks that the tokenizer and all weights are there and whole, by size.

    Raises:
        BatonError: NOT_FOUND or FAILED_PRECONDITION saying which file is missing, cut off or not understood.
    """
    spec = load_model_spec(folder)
    if not (folder / "tokenizer.json").is_file():
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"{folder} has no tokenizer.json; save the tokenizer in its fast form, for example with "
            f"AutoTokenizer.from_pretrained(...).save_pretrained(...)",
        )
    for file in _weight_files(folder):
        if not file.is_file():
            raise BatonError(ErrorCode.FAILED_PRECONDITION, f"{file} is missing; copy all weight files of the model")
        if (size := file.stat().st_size) != (wanted := expected_bytes(file)):
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION, f"{file}: got {size} bytes, expected {wanted}; copy the file again"
            )
    return spec


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION, f"{folder} has no *.safetensors; save the model with safe serialization"
        )
    return files
