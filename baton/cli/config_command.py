"""`baton config`: every effective value and where it came from."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from baton.cli.stack_flags import with_stack_flags
from baton.config import resolve
from baton.fetch import home


@with_stack_flags
def config(
    flags: dict[str, Any], as_json: Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")] = False
) -> None:
    """Show the stack's options: value and origin (default, environment or flag)."""
    _, settings = resolve(flags)
    if as_json:
        rows = {setting.name: {"value": setting.value, "source": setting.source} for setting in settings}
        print(json.dumps({"cache_folder": str(home()), "options": rows}, indent=2))
        return
    table = Table(title=f"Cache folder: {home()}", title_justify="left")
    table.add_column("Option")
    table.add_column("Value")
    table.add_column("From", style="dim")
    for setting in settings:
        table.add_row(setting.name, "-" if setting.value is None else str(setting.value), setting.source)
    Console().print(table)
