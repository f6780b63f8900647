"""`baton key`: API keys for a gateway's --api-keys file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from baton.api_keys import ApiKey, KeyBook, hash_of, id_of, new_key, read_keys, write_keys
from baton.errors import BatonError, ErrorCode

key = typer.Typer(name="key", help="API keys of a gateway.", no_args_is_help=True, rich_markup_mode=None)

_File = Annotated[Path, typer.Option("--file", help="The gateway's --api-keys file.")]


@key.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    file: _File,
    weight: Annotated[float, typer.Option(help="Its share when others wait, too.")] = 1.0,
    requests_per_minute: Annotated[float | None, typer.Option(help="Default: no limit.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(help="Requests at a time; default: no limit.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer; default: no limit.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It may administrate the gateway.")] = False,
) -> None:
    """Make a key, add its hash to the file, and print it: nobody can show it again."""
    made = new_key()
    entry = ApiKey(
        name=name,
        id=id_of(made),
        sha256=hash_of(made),
        weight=weight,
        requests_per_minute=requests_per_minute,
        max_concurrent=max_concurrent,
        max_tokens=max_tokens,
        admin=admin,
    )
    known = read_keys(file).keys if file.exists() else []
    write_keys(file, KeyBook([*known, entry]).keys)
    print(made)
    print(f"added to {file}; a gateway that uses it takes the key within a second", file=sys.stderr)


@key.command("hash")
def hash_key() -> None:
    """Read a key from standard input and print its id and hash, for a file that something else writes."""
    text = sys.stdin.readline().strip()
    print(f'"id": "{id_of(text)}", "sha256": "{hash_of(text)}"')


@key.command("list")
def list_keys(file: _File) -> None:
    """Show the keys of a file, with their limits."""
    for entry in read_keys(file).keys:
        limits = [f"weight {entry.weight:g}"]
        limits += [f"{entry.requests_per_minute:g} requests a minute"] if entry.requests_per_minute else []
        limits += [f"{entry.max_concurrent} at a time"] if entry.max_concurrent else []
        limits += [f"{entry.max_tokens} tokens an answer"] if entry.max_tokens else []
        print(f"{entry.id}  {entry.name}  {', '.join(limits)}{', admin' if entry.admin else ''}")


@key.command("remove")
def remove(key_id: Annotated[str, typer.Argument(help="As `baton key list` shows it.")], file: _File) -> None:
    """Take a key out of the file."""
    known = read_keys(file).keys
    left = [entry for entry in known if entry.id != key_id]
    if len(left) == len(known):
        raise BatonError(ErrorCode.NOT_FOUND, f"got id {key_id!r}, expected one that `baton key list` shows")
    write_keys(file, left)
