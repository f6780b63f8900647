"""The runs of one request, one for each of its answers, as one stream of events."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.attempt import Finished, PromptLogprobs, Tokens

if TYPE_CHECKING:
    from gateway.orchestrator import Run

RunEvent = Tokens | PromptLogprobs | Finished | Exception
Events = asyncio.Queue[tuple[int, RunEvent]]


class RunGroup:
    """Iterate over (answer's index, event): of each answer `PromptLogprobs`, `Tokens` and, at its end, `Finished`."""

    def __init__(self, runs: Sequence["Run"], events: Events) -> None:
        """`events`: where the runs put theirs."""
        self._runs = runs
        self._events = events
        self._open = set(range(len(runs)))

    def __aiter__(self) -> "RunGroup":
        return self

    async def __anext__(self) -> tuple[int, Tokens | PromptLogprobs | Finished]:
        """The next event, until all answers have ended. Raises `BatonError` when one has failed."""
        while self._open:
            index, event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            if index not in self._open:
                continue  # it was stopped
            if isinstance(event, Finished):
                self._open.remove(index)
            return index, event
        raise StopAsyncIteration

    async def stop(self, index: int) -> Finished:
        """Ends one answer early and well: its tokens so far are all of it. Only after a first token."""
        self._open.discard(index)
        return await self._runs[index].stop()

    def cancel(self) -> None:
        """Nobody wants the answers any more: what the workers hold is freed in the background. Idempotent."""
        for run in self._runs:
            run.cancel()
