"""Work for a client that may leave, or whose deadline may pass: it ends with the client's interest."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from baton.errors import BatonError, ErrorCode

T = TypeVar("T")


async def while_wanted(receive: Receive, deadline: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. The request's body must have been read.

    Raises:
        BatonError: CANCELLED when the client has left, DEADLINE_EXCEEDED when `deadline` (event loop's clock) passed.
    """
    task, left = asyncio.create_task(work), asyncio.create_task(_until_left(receive))
    try:
        timeout_s = max(0.0, deadline - asyncio.get_running_loop().time())
        await asyncio.wait((task, left), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if left.done():
            raise BatonError(ErrorCode.CANCELLED, "the client has closed the connection")
        raise BatonError(
            ErrorCode.DEADLINE_EXCEEDED,
            "the request's deadline passed; send it again with a later one, or a shorter one",
        )
    finally:
        left.cancel()
        task.cancel()
        await asyncio.wait((task, left))


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
