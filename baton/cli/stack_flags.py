"""The flags of `StackOptions`, made from its fields, for every command that takes them."""

import contextlib
import dataclasses
import functools
import inspect
import io
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from baton.arguments import BadArgument
from baton.config import StackOptions, environment_variable, field_types, flag
from baton.errors import invalid


def with_stack_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Adds a flag for each stack option to a command that takes `flags` (name to value; None where not given).

    Typer reads a function's signature, so the new one is written into `__signature__`. The command's own parameters
    stay; the help shows each default.
    """
    own = [p for name, p in inspect.signature(command).parameters.items() if name != "flags"]
    types = field_types()
    stack = [_parameter(field, types[field.name]) for field in dataclasses.fields(StackOptions)]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        flags = {parameter.name: values.pop(parameter.name) for parameter in stack}
        command(flags=flags, **values)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + stack
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def parse_stack_flags(words: Sequence[str]) -> dict[str, Any]:
    """The flags in `words`, as `with_stack_flags` hands them to a command, without those that are not given.

    Raises:
        BatonError: INVALID_ARGUMENT for what is no flag of a stack.
    """
    found: dict[str, Any] = {}
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.command()
    @with_stack_flags
    def take(flags: dict[str, Any]) -> None:
        found.update({name: value for name, value in flags.items() if value is not None})

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            app(args=list(words))
    except SystemExit as end:  # how it ends in any case; its errors' classes are no part of Typer's interface
        if end.code:
            reason = said.getvalue().strip().rpartition("\n")[2]
            raise invalid(f"got {' '.join(words)!r}, expected flags of `baton up` ({reason})") from None
    return found


def _parameter(field: "dataclasses.Field[Any]", kind: type) -> inspect.Parameter:
    names = f"{flag(field.name)}/--no-{field.name.replace('_', '-')}" if kind is bool else flag(field.name)
    default = "" if field.default is None else f" (default: {field.metadata['show'](field.default)})"
    text = f"{field.metadata['help']}{default} [{environment_variable(field.name)}]"
    parse = field.metadata["parse"]
    parser = None if parse is None else _by_flag(flag(field.name), parse)
    option = typer.Option(names, help=text, show_default=False, parser=parser, metavar=parse and "<size>")
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _by_flag(name: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse`, with the flag's name in its error."""

    def parse_flag(text: str) -> Any:
        try:
            return parse(text)
        except BadArgument as error:
            raise invalid(f"{name}: {error}") from error

    return parse_flag
