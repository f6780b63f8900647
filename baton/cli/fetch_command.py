"""`baton fetch`: makes a model available to all other commands."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.cli.progress_bar import FetchBars
from baton.fetch import SMALL_MODEL, fetch_model


def fetch(
    model: Annotated[
        str,
        typer.Argument(
            help=f"{SMALL_MODEL}, a folder (checked, not copied), a .gguf file (converted) or a Hugging Face id."
        ),
    ] = SMALL_MODEL,
    force: Annotated[bool, typer.Option("--force", help="Fetch again even if it is there.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every byte with the stored checksums.")] = False,
) -> None:
    """Get a model into the cache folder ($BATON_HOME or ~/.cache/baton)."""
    folder = fetch_with_bars(model, force, verify)
    print(folder)


def fetch_with_bars(model: str, force: bool = False, verify: bool = False) -> Path:
    """Fetches with progress bars on stderr."""
    with FetchBars(model, Console(stderr=True)) as bars:
        return fetch_model(model, bars.update, bars.waiting, force, verify)
