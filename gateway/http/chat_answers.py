"""/v1/chat/completions: answers, whole or as events."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET, UnsetType

from baton.rpc import inference_pb2, sampling_pb2
from gateway.http.chat_body import ChatBody
from gateway.http.events import event
from gateway.http.logprobs import ChatLogprobs, PromptLogprobs, TokenNames, chat_logprobs, prompt_logprobs
from gateway.http.usage import UsageAnswer, usage_answer

FINISH_REASONS = {
    inference_pb2.CHAT_FINISH_REASON_UNSPECIFIED: None,
    inference_pb2.CHAT_FINISH_REASON_STOP: "stop",
    inference_pb2.CHAT_FINISH_REASON_LENGTH: "length",
    inference_pb2.CHAT_FINISH_REASON_TOOL_CALLS: "tool_calls",
}


class CalledFunction(msgspec.Struct, omit_defaults=True):
    """`arguments` is JSON; in a stream, a piece of it."""

    name: str | UnsetType
    arguments: str


class Call(msgspec.Struct):
    """A tool call; in a stream only the first piece has id and type."""

    function: CalledFunction
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class AssistantMessage(msgspec.Struct):
    """The whole answer."""

    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET
    role: str = "assistant"


class Delta(msgspec.Struct):
    """What a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChunkChoice(msgspec.Struct):
    """One answer's share in a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatAnswer(msgspec.Struct):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    object: str = "chat.completion"


class ChatChunk(msgspec.Struct):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageAnswer | None | UnsetType = UNSET
    object: str = "chat.completion.chunk"


class WholeMessage:
    """The parts of one answer, put together again."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[Call] = []
        self.logprobs: list[sampling_pb2.TokenLogprobs] = []
        self.finish: inference_pb2.ChatFinishReason = inference_pb2.CHAT_FINISH_REASON_UNSPECIFIED

    def add(self, response: inference_pb2.ChatResponse) -> None:
        """What came next."""
        self._content.append(response.content)
        self._reasoning.append(response.reasoning_content)
        self.logprobs += response.logprobs
        self.finish = response.finish_reason
        for delta in response.tool_calls:
            if delta.id:
                self.calls.append(Call(CalledFunction(delta.name, ""), id=delta.id, type="function"))
            self.calls[delta.index].function.arguments += delta.arguments

    @property
    def content(self) -> str:
        """What the model says."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """What it thinks before."""
        return "".join(self._reasoning)

    def message(self) -> AssistantMessage:
        """As OpenAI has it: no content beside calls is null."""
        return AssistantMessage(
            content=self.content if self.content or not self.calls else None,
            reasoning_content=self.reasoning or UNSET,
            tool_calls=self.calls or UNSET,
        )


class ChatWriter:
    """One request's answers."""

    def __init__(self, answer_id: str, model: str, body: ChatBody, names: TokenNames) -> None:
        self._id = answer_id
        self._model = model
        self._body = body
        self._names = names
        self._created = int(time.time())
        self._usages: list[tuple[int, sampling_pb2.Usage]] = []

    async def whole(self, stream: AsyncGenerator[inference_pb2.ChatResponse, None]) -> ChatAnswer:
        """All of them, once they are complete."""
        messages = [WholeMessage() for _ in range(self._body.num_answers)]
        of_prompt: list[sampling_pb2.TokenLogprobs] = []
        async with aclosing(stream) as responses:
            async for response in responses:
                messages[response.index].add(response)
                of_prompt += response.prompt_logprobs
                self._note_usage(response)
        choices = [self._choice(index, message) for index, message in enumerate(messages)]
        answer = ChatAnswer(self._id, self._created, self._model, choices, usage_answer(self._usages))
        if self._body.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(of_prompt, self._names)
        return answer

    async def events(self, stream: AsyncGenerator[inference_pb2.ChatResponse, None]) -> AsyncGenerator[bytes, None]:
        """The role first, then one event for each response that has something to tell."""
        begun: set[int] = set()
        # Of tokens whose text is held back.
        waiting: list[list[sampling_pb2.TokenLogprobs]] = [[] for _ in range(self._body.num_answers)]
        async with aclosing(stream) as responses:
            async for response in responses:
                index = response.index
                if index not in begun:
                    begun.add(index)
                    yield self._chunk(index, Delta(role="assistant", content=""), None, None)
                self._note_usage(response)
                waiting[index] += response.logprobs
                delta, finish = _delta(response), FINISH_REASONS[response.finish_reason]
                if delta is None and finish is None:
                    continue
                held, waiting[index] = waiting[index], []
                logprobs = chat_logprobs(held, self._names) if self._body.logprobs and held else None
                yield self._chunk(index, delta or Delta(), logprobs, finish)
        if self._body.wants_usage:
            yield event(ChatChunk(self._id, self._created, self._model, [], usage_answer(self._usages)))

    def _choice(self, index: int, message: WholeMessage) -> ChatChoice:
        logprobs = chat_logprobs(message.logprobs, self._names) if self._body.logprobs else None
        return ChatChoice(index, message.message(), logprobs, FINISH_REASONS[message.finish])

    def _note_usage(self, response: inference_pb2.ChatResponse) -> None:
        if response.finish_reason:
            self._usages.append((response.index, response.usage))

    def _chunk(self, index: int, delta: Delta, logprobs: ChatLogprobs | None, finish: str | None) -> bytes:
        choice = ChunkChoice(index, delta, logprobs, finish)
        usage: None | UnsetType = None if self._body.wants_usage else UNSET
        return event(ChatChunk(self._id, self._created, self._model, [choice], usage))


def _delta(response: inference_pb2.ChatResponse) -> Delta | None:
    """None when the response adds nothing to see."""
    if not (response.content or response.reasoning_content or response.tool_calls):
        return None
    calls = [
        Call(
            CalledFunction(call.name if call.id else UNSET, call.arguments),
            index=call.index,
            id=call.id or UNSET,
            type="function" if call.id else UNSET,
        )
        for call in response.tool_calls
    ]
    return Delta(
        content=response.content or UNSET,
        reasoning_content=response.reasoning_content or UNSET,
        tool_calls=calls or UNSET,
    )
