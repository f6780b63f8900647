"""What `baton generate` was given, checked before a call is made: each error names the flag and what fits."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from baton.arguments import BadArgument, parse_address
from baton.config import flag
from baton.errors import invalid
from baton.rpc import sampling_pb2

_MAX_TIMEOUT_S = 86_400.0
_LARGEST = {  # of the integers; none of them can be negative
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
}
_FLAGS = {  # of those whose flag is not the field's name
    "stop_token_ids": "--stop-token-id",
    "allowed_token_ids": "--allowed-token-id",
    "bad_words": "--bad-word",
}


def check_seconds(name: str, value: float) -> None:
    """Raises:
    BatonError: INVALID_ARGUMENT for what is no time to wait; NaN is none.
    """
    if not 0 < value <= _MAX_TIMEOUT_S:
        raise invalid(f"got {name} {value:g}, expected seconds above 0 and at most {_MAX_TIMEOUT_S:g}")


def check_address(name: str, text: str) -> None:
    """Raises:
    BatonError: INVALID_ARGUMENT for what is not host:port.
    """
    try:
        parse_address(text)
    except BadArgument as error:
        raise invalid(f"{name}: {error}") from error


def check_text(name: str, text: str) -> None:
    """Raises:
    BatonError: INVALID_ARGUMENT for text that came in as bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"{name}: got bytes that are not UTF-8 ({error.reason}), expected text in UTF-8") from error


def sampling_params(**values: Any) -> sampling_pb2.SamplingParams:
    """Leaves out what was not given, so that the gateway's defaults hold; the gateway checks what the values mean.

    Raises:
        BatonError: INVALID_ARGUMENT naming the flag of the first value that its field cannot hold.
    """
    given = {name: value for name, value in values.items() if value is not None}
    fields = sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name
    for name, value in given.items():
        for item in value if isinstance(value, list) else [value]:
            _check(_FLAGS.get(name, flag(name)), fields[name].cpp_type, item)
    return sampling_pb2.SamplingParams(**given)


def _check(name: str, cpp_type: int, value: Any) -> None:
    if isinstance(value, str):
        check_text(name, value)
    elif cpp_type in _LARGEST and not 0 <= value <= _LARGEST[cpp_type]:
        raise invalid(f"got {name} {value}, expected 0 to {_LARGEST[cpp_type]}")
