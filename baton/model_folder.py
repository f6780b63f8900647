"""From a model's path, as a process is given it, to the folder that it reads."""

from pathlib import Path

from baton.errors import invalid
from baton.load_options import LoadFormat, is_gguf


def servable_folder(model: str | Path, load_format: LoadFormat) -> Path:
    """The folder itself; for a .gguf file the folder that it was converted to, which happens once and takes a while.

    Raises:
        BatonError: INVALID_ARGUMENT when path and format do not go together; what `fetch_model` raises.
    """
    if not is_gguf(model):
        if load_format is LoadFormat.GGUF:
            raise invalid(f"--load-format: got gguf for {model}, expected --model to be a .gguf file")
        return Path(model)
    if load_format not in (LoadFormat.AUTO, LoadFormat.GGUF):
        raise invalid(f"--load-format: got {load_format} for {model}, expected auto or gguf for a .gguf file")
    from baton.fetch import fetch_model  # imports what reads GGUF; most processes never need it

    return fetch_model(str(model))
