"""/v1/responses: answers, whole or as events."""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import msgspec

from baton.rpc import inference_pb2, sampling_pb2
from gateway.http.events import event
from gateway.http.responses_body import ResponsesBody
from gateway.http.responses_items import Event, Output

Json = dict[str, Any]
Stream = AsyncGenerator[inference_pb2.ChatResponse, None]


class ResponseAnswer(msgspec.Struct):
    """A whole answer."""

    id: str
    created_at: int
    model: str
    status: str
    output: list[Json]
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[Any]
    text: Any
    instructions: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    usage: Json | None = None
    incomplete_details: Json | None = None
    error: None = None
    previous_response_id: None = None
    metadata: Json = {}
    truncation: str = "disabled"
    store: bool = False
    object: str = "response"


class ResponsesWriter:
    """One request's answer."""

    def __init__(self, answer_id: str, model: str, body: ResponsesBody) -> None:
        self._output = Output()
        self._answer = ResponseAnswer(
            id=answer_id,
            created_at=int(time.time()),
            model=model,
            status="in_progress",
            output=[],
            parallel_tool_calls=body.parallel_tool_calls is not False,
            tool_choice=body.tool_choice or "auto",
            tools=list(body.tools or ()),
            text=body.text or {"format": {"type": "text"}},
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
        )
        self._num_events = 0

    async def whole(self, stream: Stream) -> ResponseAnswer:
        """The answer, once it is complete."""
        async with aclosing(stream) as responses:
            async for response in responses:
                for _ in self._output.add(response):
                    pass
                if response.finish_reason:
                    self._finish(response)
        return self._answer

    async def events(self, stream: Stream) -> AsyncGenerator[bytes, None]:
        """The response's beginning, its items as they grow, and the response as a whole."""
        begun = False
        async with aclosing(stream) as responses:
            async for response in responses:
                if not begun:
                    begun = True
                    yield self._response_event("response.created")
                    yield self._response_event("response.in_progress")
                for data in self._written(self._output.add(response)):
                    yield data
                if response.finish_reason:
                    for data in self._written(self._output.close()):
                        yield data
                    self._finish(response)
        yield self._response_event(f"response.{self._answer.status}")

    def _finish(self, last: inference_pb2.ChatResponse) -> None:
        answer = self._answer
        if last.finish_reason == inference_pb2.CHAT_FINISH_REASON_LENGTH:
            answer.status, answer.incomplete_details = "incomplete", {"reason": "max_output_tokens"}
        else:
            answer.status = "completed"
        answer.output = self._output.items(answer.status)
        answer.usage = _usage(last.usage)

    def _response_event(self, kind: str) -> bytes:
        return self._event(kind, {"response": self._answer})

    def _written(self, events: Iterator[Event]) -> Iterator[bytes]:
        for kind, fields in events:
            yield self._event(kind, fields)

    def _event(self, kind: str, fields: Json) -> bytes:
        self._num_events += 1
        return event({"type": kind, "sequence_number": self._num_events - 1} | fields, kind)


def _usage(usage: sampling_pb2.Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},  # not counted apart
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
