"""The `baton` command."""

from baton.cli.app import main

__all__ = ["main"]
