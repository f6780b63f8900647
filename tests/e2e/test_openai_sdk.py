"""The real `openai` package against a real stack: sync, async, streams, tools, structured outputs."""

import asyncio
import json
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from baton.local.stack import LocalStack
from tests.e2e.client import MODEL

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Rome"]},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIMEOUT_S = 200


class Size(BaseModel):
    unit: Literal["cm", "inch"]
    is_tall: bool


class Animal(BaseModel):
    kind: Literal["dog", "cat"]
    size: Size


@pytest.fixture
def client(apart: LocalStack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{apart.http_url}/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0) as opened:
        yield opened


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_stream_says_the_same_as_a_whole_answer(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.stream(**ask) as stream:
        assert stream.get_final_completion().choices[0].message.content == text


def test_many_at_once_over_the_async_client(apart: LocalStack) -> None:
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{apart.http_url}/v1", api_key="none", timeout=TIMEOUT_S) as client:

            async def ask(number: int) -> str:
                stream = await client.completions.create(
                    model=MODEL, prompt=f"{number} plus {number} is", max_tokens=8, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(ask(number % 4) for number in range(16)))

    texts = asyncio.run(ask_all())
    assert texts[:4] * 4 == texts
    assert all(texts)


def test_echo_scores_a_prompt_as_evaluations_do(client: openai.OpenAI) -> None:
    prompt = "The capital of France is Paris"
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer.choices
    assert choice.text == prompt
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == prompt
    assert choice.logprobs.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in choice.logprobs.token_logprobs[1:])
    with_answer = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    more = with_answer.choices[0].logprobs
    assert more is not None
    assert len(more.tokens or ()) == len(choice.logprobs.tokens or ()) + 1


def test_a_schema_becomes_an_object(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Describe a dog as JSON."}]
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Animal, max_tokens=100)  # type: ignore[arg-type]
    assert isinstance(parsed.choices[0].message.parsed, Animal)
    told = client.chat.completions.create(
        model=MODEL,
        messages=messages,  # type: ignore[arg-type]
        max_tokens=40,
        extra_body={"guided_choice": ["woof", "meow"]},
    )
    assert told.choices[0].message.content in ("woof", "meow")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_tool_calls_follow_their_schema(client: openai.OpenAI, choice: object) -> None:
    ask = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "How warm is it in Rome?"}],
        "tools": [WEATHER],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 80,
        "seed": 3,
    }
    whole = client.chat.completions.create(**ask).choices[0].message  # type: ignore[call-overload]
    arguments = json.loads(whole.tool_calls[0].function.arguments)
    assert arguments["city"] in ("Paris", "Rome")
    assert set(arguments) == {"city", "unit"}
    with client.chat.completions.stream(**ask) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.tool_calls[0].function.name == "get_weather"
    assert json.loads(streamed.tool_calls[0].function.arguments) == arguments


def test_a_stream_that_is_left_frees_its_blocks(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()  # the fixture asserts that nothing is held


def test_errors_are_the_packages_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)  # type: ignore[arg-type]
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=QUESTION)  # type: ignore[arg-type]


def test_responses_whole_streamed_and_parsed(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "input": QUESTION, "max_output_tokens": 24, "temperature": 0}
    whole = client.responses.create(**ask)  # type: ignore[call-overload]
    assert "Paris" in whole.output_text
    with client.responses.stream(**ask) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == whole.output_text
    assert "".join(pieces) == whole.output_text
    parsed = client.responses.parse(
        model=MODEL, input="Describe a dog as JSON.", text_format=Animal, max_output_tokens=100
    )
    assert isinstance(parsed.output_parsed, Animal)


def test_several_answers_share_a_request(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "n": 3, "seed": 5, "temperature": 1.5}
    whole = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**ask, stream=True):  # type: ignore[call-overload]
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    one = client.chat.completions.create(**{**ask, "n": 1})  # type: ignore[call-overload]
    assert whole.usage.prompt_tokens == one.usage.prompt_tokens
    completed = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=4, n=2, best_of=3, seed=1)
    assert [choice.index for choice in completed.choices] == [0, 1, 2, 3]
