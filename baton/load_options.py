"""How a model is loaded: which files its weights come from, and whose code computes it."""

import enum
from pathlib import Path


class LoadFormat(enum.StrEnum):
    """Where weights come from."""

    AUTO = "auto"  # whatever the model's path holds
    SAFETENSORS = "safetensors"
    GGUF = "gguf"  # a file, dequantized once into a folder of the cache
    DUMMY = "dummy"  # random ones, of which config.json says the shapes


class ModelImpl(enum.StrEnum):
    """Whose code computes the model."""

    AUTO = "auto"  # ours where it can, else transformers'
    NATIVE = "native"
    TRANSFORMERS = "transformers"


def is_gguf(model: str | Path) -> bool:
    """Whether a model's path names a GGUF file."""
    return Path(model).suffix.lower() == ".gguf"


def default_name(model: str | Path) -> str:
    """What clients call a model that was given no name: its folder's, or its file's without the ending."""
    path = Path(model).resolve()
    return path.stem if is_gguf(path) else path.name
