"""Models from the Hugging Face Hub by id."""

import os
from pathlib import Path

from baton.errors import BatonError, ErrorCode
from baton.fetch.checksums import write_sums
from baton.fetch.local import validate_folder
from baton.fetch.progress import Progress
from baton.fetch.staged import Stage

_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
# Weights in other forms that some repositories keep in folders beside the main ones.
_IGNORED = ["*/*", "consolidated*.safetensors"]


def build_from_hub(model_id: str, stage: Stage, progress: Progress) -> None:
    """Downloads a snapshot into the stage; files that an interrupted try finished are not downloaded again.

    Raises:
        BatonError: NOT_FOUND for an unknown or gated id, UNAVAILABLE without network, FAILED_PRECONDITION when the
            repository does not hold a model that Baton can read.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    download = stage.work / "hub"
    try:
        snapshot_download(model_id, local_dir=download, allow_patterns=_PATTERNS, ignore_patterns=_IGNORED)
    except GatedRepoError as error:
        raise BatonError(
            ErrorCode.NOT_FOUND, f"{model_id} is gated: accept its terms on the Hub and set HF_TOKEN ({_line(error)})"
        ) from error
    except RepositoryNotFoundError as error:
        raise BatonError(
            ErrorCode.NOT_FOUND,
            f"got model {model_id!r}, expected smollm2-135m, a folder or an id of the Hugging Face Hub; "
            f"the Hub knows no such id (set HF_TOKEN if it is private)",
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        offline = " HF_HUB_OFFLINE is set." if os.environ.get("HF_HUB_OFFLINE") else ""
        raise BatonError(
            ErrorCode.UNAVAILABLE,
            f"cannot reach the Hugging Face Hub for {model_id}: {_line(error)}.{offline} Try again with network (what "
            f"was downloaded is kept), or give a model folder",
        ) from error
    for file in sorted(download.iterdir()):
        if file.is_file():
            _link(file, stage.out / file.name)
    validate_folder(stage.out)
    write_sums(stage.out, progress)


def _link(file: Path, target: Path) -> None:
    """Hard links, so that no second copy of the weights is made and an interrupted fetch keeps the first."""
    os.link(file.resolve(), target)


def _line(error: Exception) -> str:
    """The first line of an error's text; the Hub's errors go on with hints that do not fit here."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
