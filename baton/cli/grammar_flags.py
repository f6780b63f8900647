"""Flags that say what an answer must be, as the protocol's message."""

from pathlib import Path
from typing import Any

from baton.errors import invalid
from baton.rpc import sampling_pb2

_FILES = ("json_schema", "ebnf", "structural_tag")  # too long for a command line


def structured_output(**given: Any) -> sampling_pb2.StructuredOutput | None:
    """From values by the protocol's field names, None where a flag was not given. None when none was.

    Raises:
        BatonError: INVALID_ARGUMENT when more than one was given, or a file cannot be read.
    """
    kinds = {field: value for field, value in given.items() if value is not None}
    if not kinds:
        return None
    if len(kinds) > 1:
        raise invalid(f"got {' and '.join(kinds)}, expected at most one of {', '.join(given)}; drop the others")
    ((field, value),) = kinds.items()
    if field == "choice":
        return sampling_pb2.StructuredOutput(choice=sampling_pb2.Choice(texts=value))
    message = sampling_pb2.StructuredOutput()
    setattr(message, field, _text(value) if field in _FILES else value)
    return message


def _text(value: str) -> str:
    """What is in the file of that name, or the value itself: text of a grammar is no file's name."""
    if any(char in value for char in "{\n") or "::=" in value:
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise invalid(f"cannot read {value!r}: {error}; give a file's name, or the text itself") from error
