"""Several streams of answers as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 64


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Each item with its stream's index, as they come; the first failure ends all. At most 64 streams run at once."""
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()
    gate = asyncio.Semaphore(_AT_ONCE)

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with gate:
                async for item in stream:
                    queue.put_nowait((index, item))
        except Exception as error:
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def numbered(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """As `merged`; the common case of one stream needs no queue."""
    if len(streams) > 1:
        async with aclosing(merged(streams)) as all_items:
            async for numbered_item in all_items:
                yield numbered_item
        return
    async with aclosing(streams[0]) as items:
        async for item in items:
            yield 0, item
