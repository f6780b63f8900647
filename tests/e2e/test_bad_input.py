"""Bad input gets a status that says what to change, frees everything, and leaves other requests alone."""

import asyncio

import grpc
import pytest

from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, inference_pb2_grpc
from baton.rpc.sampling_pb2 import SamplingParams, StructuredOutput
from tests.e2e.client import MODEL, Answer, ask_together, connect, generate, greedy, token_request

CONTEXT = 4096
Request = inference_pb2.GenerateRequest
INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


def chat(role: str, content: str) -> Request:
    message = inference_pb2.ChatMessage(role=role, content=content)
    return Request(model=MODEL, chat=inference_pb2.ChatPrompt(messages=[message]))


BAD = {
    "no prompt": (Request(model=MODEL), INVALID, "prompt"),
    "empty text": (Request(model=MODEL, text=""), INVALID, "prompt"),
    "no tokens": (token_request([], greedy(1)), INVALID, "prompt"),
    "too long": (token_request([5] * CONTEXT, greedy(1)), INVALID, "shorten"),
    "far too long text": (Request(model=MODEL, text="word " * 20000), INVALID, "shorten"),
    "no room for max_tokens": (token_request([5] * 100, greedy(CONTEXT)), INVALID, "lower max_tokens"),
    "unknown model": (Request(model="gpt-5", text="hi"), MISSING, MODEL),
    "negative temperature": (
        Request(model=MODEL, text="hi", sampling=SamplingParams(temperature=-1)),
        INVALID,
        "temper",
    ),
    "not a number": (Request(model=MODEL, text="hi", sampling=SamplingParams(top_p=float("nan"))), INVALID, "top_p"),
    "no tokens wanted": (Request(model=MODEL, text="hi", sampling=SamplingParams(max_tokens=0)), INVALID, "max_tokens"),
    "unknown role": (chat("wizard", "hi"), INVALID, "role"),
    "empty message": (chat("user", ""), INVALID, "content"),
    "no messages": (Request(model=MODEL, chat=inference_pb2.ChatPrompt()), INVALID, "messages"),
    "token outside the vocabulary": (token_request([49152], greedy(1)), INVALID, "vocabulary"),
    "no rule of that name": (
        Request(model=MODEL, text="hi", sampling=SamplingParams(structured=StructuredOutput(ebnf="root ::= x"))),
        INVALID,
        'Rule "x" is not defined',
    ),
    "unenforced schema": (
        Request(
            model=MODEL, text="hi", sampling=SamplingParams(structured=StructuredOutput(json_schema='{"not": {}}'))
        ),
        INVALID,
        "got not, which cannot be enforced",
    ),
    "no JSON": (
        Request(model=MODEL, text="hi", sampling=SamplingParams(structured=StructuredOutput(json_schema='{"type":'))),
        INVALID,
        "no valid JSON",
    ),
    "50 MB": (Request(model=MODEL, text="x" * (50 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED, "--max-message-mib"),
    "beyond the transport": (Request(model=MODEL, text="x" * (70 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED, "larger"),
}


def test_each_bad_input_beside_a_good_request(apart: LocalStack) -> None:
    async def run() -> None:
        async with connect(apart.gateway_address) as channel:
            good = asyncio.create_task(generate(channel, token_request(range(500, 540), greedy(60, ignore_eos=True))))
            for name, (request, code, words) in BAD.items():
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await generate(channel_for(name, channel), request)
                assert caught.value.code() is code, name
                assert words in (caught.value.details() or ""), f"{name}: {caught.value.details()}"
            assert len((await good).token_ids) == 60

    def channel_for(name: str, channel: grpc.aio.Channel) -> grpc.aio.Channel:
        if name != "beyond the transport":
            return channel
        return grpc.aio.insecure_channel(apart.gateway_address, options=[("grpc.max_send_message_length", 1 << 30)])

    asyncio.run(run())


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_client_that_disconnects_leaves_nothing_behind(apart: LocalStack, after: int) -> None:
    """In mid-prefill, with the first token, and in mid-decode; the other request does not notice."""

    async def leave(channel: grpc.aio.Channel) -> None:
        prompt = [11 + (n * 7 + after) % 3000 for n in range(1500)]
        call = inference_pb2_grpc.InferenceStub(channel).Generate(token_request(prompt, greedy(500, ignore_eos=True)))
        if after == 0:
            await asyncio.sleep(0.5)
        for _ in range(after):
            await call.read()
        call.cancel()

    async def run() -> Answer:
        async with connect(apart.gateway_address) as mine, connect(apart.gateway_address) as theirs:
            good = asyncio.create_task(generate(mine, token_request(range(700, 740), greedy(16))))
            await leave(theirs)
            return await good

    (alone,) = ask_together(apart.gateway_address, [token_request(range(700, 740), greedy(16))])
    assert asyncio.run(run()).token_ids == alone.token_ids


def test_a_deadline_ends_the_request_everywhere(apart: LocalStack) -> None:
    async def run() -> grpc.StatusCode:
        async with connect(apart.gateway_address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await generate(channel, token_request(range(50, 90), greedy(3000, ignore_eos=True)), timeout_s=1.5)
            return caught.value.code()

    assert asyncio.run(run()) is grpc.StatusCode.DEADLINE_EXCEEDED
