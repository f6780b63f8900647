"""/v1/completions: answers, whole or as events."""

import time
from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from baton.rpc import inference_pb2, sampling_pb2
from gateway.http.completion_body import CompletionBody
from gateway.http.events import event
from gateway.http.logprobs import (
    CompletionLogprobs,
    CompletionLogprobsWriter,
    PromptLogprobs,
    TokenNames,
    prompt_logprobs,
)
from gateway.http.merge import numbered
from gateway.http.usage import UsageAnswer, usage_answer

FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_UNSPECIFIED: None,
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
}
Streams = Sequence[AsyncGenerator[inference_pb2.GenerateResponse, None]]


class CompletionChoice(msgspec.Struct):
    """One answer, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionAnswer(msgspec.Struct):
    """A whole answer, or one chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer | None | UnsetType = UNSET
    object: str = "text_completion"


class _Choice:
    """What is known of one answer so far."""

    def __init__(self, index: int, names: TokenNames) -> None:
        self.index = index
        self._logprobs = CompletionLogprobsWriter(names)
        self._names = names
        self._prompt_ids: list[int] = []  # with echo; those that have no entry yet

    def add(self, response: inference_pb2.GenerateResponse, body: CompletionBody) -> CompletionChoice:
        """What `response` adds."""
        choice = CompletionChoice(self.index, response.text, None, FINISH_REASONS[response.finish_reason])
        self._prompt_ids += response.prompt_token_ids
        ids, entries = [*response.token_ids], [*response.logprobs]
        if body.echo and body.logprobs is not None:
            told = len(response.prompt_logprobs)
            ids = self._prompt_ids[:told] + ids
            entries = [*response.prompt_logprobs, *entries]
            self._prompt_ids = self._prompt_ids[told:]
        if body.logprobs is not None and (ids or not body.stream):
            choice.logprobs = self._logprobs.write(ids, entries)
        if body.prompt_logprobs is not None and response.index == 0:
            choice.prompt_logprobs = prompt_logprobs(response.prompt_logprobs, self._names)
        return choice


class CompletionWriter:
    """One request's answer."""

    def __init__(self, answer_id: str, model: str, body: CompletionBody, names: TokenNames) -> None:
        self._id = answer_id
        self._model = model
        self._body = body
        self._names = names
        self._created = int(time.time())
        self._usages: list[tuple[int, sampling_pb2.Usage]] = []

    async def whole(self, streams: Streams) -> CompletionAnswer:
        """All choices, in the order of the prompts."""
        choices = self._choices(streams)
        done: list[CompletionChoice | None] = [None] * len(choices)
        texts: list[list[str]] = [[] for _ in choices]
        async for prompt, response in numbered(streams):
            index = self._index(prompt, response)
            added = choices[index].add(response, self._body)
            texts[index].append(added.text)
            done[index] = _joined(done[index], added)
            self._note_usage(response)
        finished = [choice for choice in done if choice is not None]
        for choice, pieces in zip(finished, texts, strict=True):
            choice.text = "".join(pieces)
        return CompletionAnswer(self._id, self._created, self._model, finished, usage_answer(self._usages))

    async def events(self, streams: Streams) -> AsyncGenerator[bytes, None]:
        """One event for each response that has something to tell."""
        choices = self._choices(streams)
        usage: None | UnsetType = None if self._body.wants_usage else UNSET
        async for prompt, response in numbered(streams):
            self._note_usage(response)
            added = choices[self._index(prompt, response)].add(response, self._body)
            if added.text or added.logprobs or added.finish_reason:
                yield event(CompletionAnswer(self._id, self._created, self._model, [added], usage))
        if self._body.wants_usage:
            total = usage_answer(self._usages)
            yield event(CompletionAnswer(self._id, self._created, self._model, [], total))

    def _choices(self, streams: Streams) -> list[_Choice]:
        return [_Choice(index, self._names) for index in range(len(streams) * self._body.num_answers)]

    def _index(self, prompt: int, response: inference_pb2.GenerateResponse) -> int:
        """Answers to the first prompt come first."""
        return prompt * self._body.num_answers + response.index

    def _note_usage(self, response: inference_pb2.GenerateResponse) -> None:
        if response.finish_reason:
            self._usages.append((response.index, response.usage))


def _joined(before: CompletionChoice | None, added: CompletionChoice) -> CompletionChoice:
    """Both as one, but for the text."""
    if before is None:
        return added
    before.finish_reason = added.finish_reason
    if before.logprobs is not None and added.logprobs is not None:
        before.logprobs.tokens += added.logprobs.tokens
        before.logprobs.token_logprobs += added.logprobs.token_logprobs
        before.logprobs.top_logprobs += added.logprobs.top_logprobs
        before.logprobs.text_offset += added.logprobs.text_offset
    if before.prompt_logprobs is not UNSET and added.prompt_logprobs is not UNSET:
        before.prompt_logprobs += added.prompt_logprobs
    return before
