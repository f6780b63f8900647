"""A request's body: bounded, then decoded into a struct that bounds its fields."""

import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from baton.errors import BatonError, invalid
from gateway.http.errors import BodyTooLarge

_MIB = 1 << 20
_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `(?:key in )?\$\.?(?P<field>.*)`)?", re.DOTALL)

Body = TypeVar("Body", bound=msgspec.Struct)


async def read_body(request: Request, kind: type[Body], max_message_mib: int) -> Body:
    """Unknown fields are left aside, as in vLLM.

    Raises:
        BatonError: RESOURCE_EXHAUSTED when the body is too large, INVALID_ARGUMENT when it is no JSON or a field has
            another type or bound.
    """
    limit_bytes = max_message_mib * _MIB
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise BodyTooLarge(max_message_mib)
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > limit_bytes:
            raise BodyTooLarge(max_message_mib)
    return decode_body(bytes(data), kind)


def decode_body(data: bytes, kind: type[Body]) -> Body:
    """Raises:
    BatonError: INVALID_ARGUMENT as `read_body`.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is no valid JSON ({error}); correct it") from error
    except RecursionError as error:
        raise invalid("the body's JSON is nested too deeply; flatten it") from error


def _wrong_field(message: str) -> BatonError:
    """msgspec says "Expected `int`, got `str` - at `$.max_tokens`"."""
    match = _PLACE.fullmatch(message)
    assert match is not None  # the pattern takes any text
    field = (match["field"] or "body").replace("[...]", "[]")
    return invalid(f"{field}: {match['problem'][:1].lower()}{match['problem'][1:]}; change or drop it")
