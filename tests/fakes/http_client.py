"""A client of the gateway's HTTP API, and workers that answer it a text."""

import json
from typing import Any

import httpx2

from baton.types import FinishReason
from gateway.text import TextCodec
from tests.fakes.gateway_stack import Stack
from tests.fakes.workers import decode_of, prefill_of

TEXT = "the quick brown fox"
USER = {"role": "user", "content": "Hi"}


def connect(stack: Stack) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=stack.http_url, trust_env=False, timeout=20)


def answers(stack: Stack, codec: TextCodec, text: str) -> None:
    ids = codec.encode_bare(text)
    stack.prefill.script, stack.decode.script = prefill_of(ids), decode_of(ids, reason=FinishReason.STOP)


async def events(client: httpx2.AsyncClient, path: str, **body: Any) -> list[Any]:
    """All chunks of a stream, which must end with [DONE]."""
    response = await client.post(path, json={"model": "tiny", "stream": True} | body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, last = [line for line in response.text.split("\n\n") if line]
    assert last == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]
