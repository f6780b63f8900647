"""From one GGUF file to a complete model folder."""

import json
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from baton.errors import BatonError, ErrorCode
from baton.fetch.checksums import write_sums
from baton.fetch.gguf_metadata import generation_config, model_config, read_metadata
from baton.fetch.gguf_tokenizer import build_tokenizer, tokenizer_config
from baton.fetch.gguf_weights import convert_weights
from baton.fetch.progress import Progress, no_progress


def convert_gguf(gguf_file: Path, folder: Path, progress: Progress = no_progress) -> None:
    """Fills an empty folder with config.json, generation_config.json, tokenizer files, model.safetensors, SHA256SUMS.

    The same GGUF gives the same bytes every time. SHA256SUMS comes last: a folder without it is not whole.

    Raises:
        BatonError: FAILED_PRECONDITION when the GGUF is not of an architecture, or has no tokenizer, that we read.
    """
    reader = _read(gguf_file)
    metadata = read_metadata(reader)
    _write_json(folder / "config.json", model_config(metadata))
    _write_json(folder / "generation_config.json", generation_config(metadata))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(reader, metadata))
    build_tokenizer(reader).save(str(folder / "tokenizer.json"), pretty=False)
    convert_weights(reader, metadata, folder / "model.safetensors", progress)
    write_sums(folder, progress)


def _read(gguf_file: Path) -> GGUFReader:
    try:
        return GGUFReader(gguf_file)
    except (OSError, ValueError, IndexError, KeyError) as error:  # what the package runs into when bytes are wrong
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION, f"{gguf_file} is not a whole GGUF file ({error}); get it again"
        ) from error


def _write_json(file: Path, content: dict[str, Any]) -> None:
    present = {key: value for key, value in content.items() if value is not None}
    file.write_text(json.dumps(present, indent=2, ensure_ascii=False, sort_keys=True) + "\n")
