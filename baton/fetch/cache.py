"""Where fetched models live, and how a model's name becomes a folder."""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from baton.arguments import BadArgument
from baton.errors import BatonError, ErrorCode
from baton.load_options import is_gguf

SMALL_MODEL = "smollm2-135m"


def home() -> Path:
    """The cache folder: $BATON_HOME, or ~/.cache/baton."""
    configured = os.environ.get("BATON_HOME")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "baton"


def models_dir() -> Path:
    """The folder that holds one folder a model."""
    return home() / "models"


def cached_folder(name: str) -> Path:
    """Where a model of that name (or Hugging Face id) is kept, whether or not it is there."""
    return models_dir() / name.replace("/", "--")


def converted_name(gguf_file: str | Path) -> str:
    """Under what name a local GGUF's conversion is kept; another one once the file has changed.

    Raises:
        BatonError: NOT_FOUND when there is no such file.
    """
    file = Path(gguf_file).expanduser().resolve()
    if not file.is_file():
        raise BatonError(ErrorCode.NOT_FOUND, f"got model {gguf_file}, which is no file; check the path")
    status = file.stat()
    told_apart = hashlib.sha256(f"{file}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()[:8]
    return f"{file.stem}-{told_apart}"


def partial_folder(name: str) -> Path:
    """Where a fetch works until it is done; what is left of an interrupted one is used again."""
    return models_dir() / (cached_folder(name).name + ".partial")


def looks_like_path(model: str) -> bool:
    """Whether the user means a folder rather than a name."""
    return model.startswith(("/", "./", "../", "~")) or model in (".", "..")


def resolve_model(name_or_path: str) -> Path:
    """The folder of a fetched model, of a local one, or of what a .gguf file was converted to. Fetches nothing.

    Raises:
        BatonError: NOT_FOUND when there is no such model; the message says how to get it.
    """
    if is_gguf(name_or_path):
        folder = cached_folder(converted_name(name_or_path))
        if not folder.is_dir():
            raise BatonError(
                ErrorCode.NOT_FOUND, f"{name_or_path} has not been converted; run `baton fetch {name_or_path}` first"
            )
        return folder
    if not looks_like_path(name_or_path):
        cached = cached_folder(name_or_path)
        if (cached / "config.json").is_file():
            return cached
    folder = Path(name_or_path).expanduser()
    if (folder / "config.json").is_file():
        return folder.resolve()
    if folder.is_dir() or looks_like_path(name_or_path):
        reason = "has no config.json" if folder.is_dir() else "does not exist"
        raise BatonError(
            ErrorCode.NOT_FOUND,
            f"got model folder {folder}, which {reason}; give a folder with config.json, tokenizer.json and "
            f"*.safetensors, or a fetched model's name such as {SMALL_MODEL}",
        )
    raise BatonError(
        ErrorCode.NOT_FOUND,
        f"model {name_or_path!r} is not in {models_dir()} and is no folder; run `baton fetch {name_or_path}` first",
    )


def parse_model(text: str) -> str:
    """A command line's --model: the folder of a fetched model's name. A path is left to whoever opens it.

    Raises:
        BadArgument: as `resolve_model`.
    """
    if looks_like_path(text) or is_gguf(text):
        return text
    try:
        return str(resolve_model(text))
    except BatonError as error:
        raise BadArgument(error.message) from error


@contextlib.contextmanager
def fetch_lock(name: str, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the model's lock, so that two fetches of it run one after the other. The kernel frees it if we die.

    `on_wait` is called once if another process holds the lock now.
    """
    locks = models_dir() / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / (cached_folder(name).name + ".lock")).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
