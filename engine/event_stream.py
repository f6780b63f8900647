"""What an engine core says about one attempt at a request, as an async iterator."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from engine.messages import Aborted, Admitted, Failed, Finished, Granted, Moved, PromptLogprobs, Refused, Tokens


class MoveWanted(NamedTuple):
    """Said by the service, not by its core: whoever reads the stream may have the request go on elsewhere."""


StreamEvent = Granted | Refused | Admitted | PromptLogprobs | Tokens | Finished | Moved | Failed | Aborted | MoveWanted
AttemptKey = tuple[str, int]  # request id, epoch


class EventStream(AsyncIterator[StreamEvent]):
    """The events of one attempt, in order; ends after Refused, Finished, Moved, Failed or Aborted.

    For one consumer. A consumer that goes away early leaves nothing behind: the client drops the stream when the core
    ends the attempt.
    """

    def __init__(self, key: AttemptKey, movable: bool = False) -> None:
        """`movable`: whoever reads it can be asked to have the request go on elsewhere."""
        self.key = key
        self.movable = movable
        self._queue: deque[StreamEvent] = deque()
        self._arrived = asyncio.Event()
        self._over = False
        self._when_over: Callable[[], None] | None = None

    def pending(self) -> tuple[StreamEvent, ...]:
        """What has arrived and was not taken yet; takes nothing. Events of one batch of the core arrive together."""
        return tuple(self._queue)

    @property
    def over(self) -> bool:
        """Whether the last event has arrived, taken or not."""
        return self._over

    def when_over(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the last event arrives, or now when it has. One a stream; it must not wait."""
        if self._over:
            callback()
        self._when_over = callback

    async def __anext__(self) -> StreamEvent:
        while not self._queue:
            if self._over:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()

    def put(self, event: StreamEvent) -> bool:
        """For the client: queues `event`; True when it ends the stream."""
        self._queue.append(event)
        self._over = isinstance(event, Refused | Finished | Moved | Failed | Aborted)
        self._arrived.set()
        if self._over and self._when_over:
            self._when_over()
        return self._over
