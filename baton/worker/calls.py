"""What the calls of a worker service have in common."""

from collections.abc import Callable, Sequence
from typing import Any

from baton.errors import invalid


def when_done(context: Any, callback: Callable[[], None]) -> None:
    """Calls `callback` when the call has ended, however it has: a generator suspended at a `yield` is not resumed then.

    `Any`, because grpc-stubs declares a class where gRPC takes any function.
    """
    context.add_done_callback(lambda _: callback())


def prompt_of(request_id: str, token_ids: Sequence[int]) -> tuple[int, ...]:
    """The prompt of a request that has a name.

    Raises:
        BatonError: INVALID_ARGUMENT when the request has no id or no prompt.
    """
    if not request_id:
        raise invalid("got an empty request_id, expected the name of the request")
    if not token_ids:
        raise invalid(f"request {request_id}: got no prompt_token_ids, expected at least one")
    return tuple(token_ids)
