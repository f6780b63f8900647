"""Any OpenAI-compatible endpoint: POST /v1/completions with token ids, answered by server-sent events."""

from typing import Any, Self

import aiohttp
import msgspec

from baton.bench.targets.base import Arrivals, Ask, Failure, Served, Target, now_s
from baton.errors import BatonError, ErrorCode

_LIST_TIMEOUT_S = 10.0
_SHOWN = 300  # characters of an error's body


class OpenAiTarget(Target):
    """aiohttp, because a streamed token costs it half of what it costs httpx (docs/log.md).

    An event counts as one arrival when it brings text, or token ids, or no finish reason; as one token unless it has
    `token_ids`. What `usage` says at the end overrules the count.
    """

    def __init__(self, url: str, temperature: float) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._temperature = temperature

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers={"Content-Type": "application/json"}
        )
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._session.close()

    async def served(self, model: str) -> Served:
        timeout = aiohttp.ClientTimeout(total=_LIST_TIMEOUT_S)
        try:
            async with self._session.get(f"{self._url}/v1/models", timeout=timeout) as response:
                body = await response.read()
                response.raise_for_status()
                models = msgspec.json.decode(body, type=_Models).data
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            raise BatonError(
                ErrorCode.UNAVAILABLE,
                f"{self._url}/v1/models did not say what is served ({_told(error)}); start the server, or name another "
                "with --target",
            ) from error
        for served in models:
            if model in ("", served.id):
                return Served(served.id, served.max_model_len)
        names = ", ".join(served.id for served in models) or "no model"
        raise BatonError(ErrorCode.NOT_FOUND, f"got --model {model!r}, but {self._url} serves {names}")

    def prepare(self, ask: Ask, model: str) -> bytes:
        return msgspec.json.encode(
            {
                "model": model,
                "prompt": ask.prompt,
                "max_tokens": ask.output_tokens,
                "temperature": self._temperature,
                "ignore_eos": True,  # of vLLM, SGLang and Baton: answers have the length that was asked for
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    async def stream(self, request_id: str, payload: bytes, arrivals: Arrivals, timeout_s: float) -> None:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        headers = {"X-Request-Id": request_id}
        try:
            async with self._session.post(
                f"{self._url}/v1/completions", data=payload, headers=headers, timeout=timeout
            ) as response:
                if response.status != 200:
                    raise Failure(f"http {response.status}", (await response.text())[:_SHOWN])
                finished = await _read_events(response.content, arrivals)
        except TimeoutError as error:
            raise Failure("timeout", f"the answer was not complete after {timeout_s:g} s (--timeout-s)") from error
        except aiohttp.ClientConnectorError as error:
            raise Failure("unreachable", _told(error)) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Failure("broken off", f"after {arrivals.num_tokens} tokens: {_told(error)}") from error
        except (msgspec.MsgspecError, ValueError) as error:
            raise Failure("malformed event", _told(error)) from error
        if not finished:
            raise Failure("broken off", f"the stream ended after {arrivals.num_tokens} tokens without a finish reason")
        if not arrivals.moments_s:
            raise Failure("no tokens", "the answer ended without a token")


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_EVENTS = msgspec.json.Decoder(_Event)


async def _read_events(content: aiohttp.StreamReader, arrivals: Arrivals) -> bool:
    """Notes all events; whether one had a finish reason."""
    finished = False
    async for line in content:
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        moment_s = now_s()
        event = _EVENTS.decode(line[5:])
        if event.error is not None:
            raise Failure("error event", msgspec.json.encode(event.error).decode()[:_SHOWN])
        for choice in event.choices[:1]:
            if choice.text or choice.token_ids or choice.finish_reason is None:
                arrivals.moments_s.append(moment_s)
                arrivals.token_ids += choice.token_ids or ()
                arrivals.num_tokens += len(choice.token_ids) if choice.token_ids else 1
            finished = finished or choice.finish_reason is not None
        if event.usage is not None:
            arrivals.output_tokens = event.usage.completion_tokens
            if event.usage.prompt_tokens_details is not None:
                arrivals.cached_tokens = event.usage.prompt_tokens_details.cached_tokens
    return finished


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
