"""/v1/completions: requests. Prompts are texts or token ids, one or several."""

from typing import Annotated, Any

from msgspec import Meta

from baton.errors import invalid
from baton.rpc import inference_pb2
from gateway.http.fields import Int32, SamplingFields, TokenId, sampling_of

MAX_PROMPTS = 1024
_DEFAULT_MAX_TOKENS = 16  # OpenAI's
Prompt = str | Annotated[list[str | TokenId | list[TokenId]], Meta(max_length=1 << 22)]


class CompletionBody(SamplingFields, kw_only=True):
    """A completion request."""

    prompt: Prompt
    max_tokens: Int32 | None = _DEFAULT_MAX_TOKENS
    logprobs: Int32 | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    suffix: str | None = None


def messages_of(body: CompletionBody, request_id: str) -> list[inference_pb2.GenerateRequest]:
    """One a prompt.

    Raises:
        BatonError: INVALID_ARGUMENT for fields that are not served, or a mixture of prompts.
    """
    if body.suffix:
        raise invalid("suffix: got a text, expected none: models here continue a prompt at its end; drop it")
    if body.echo and body.num_answers > 1:
        raise invalid(f"n: got {body.n} together with echo, expected 1; drop either")
    prompts = _prompts(body.prompt)
    sampling = sampling_of(body, body.max_tokens, body.logprobs)
    if body.add_special_tokens is False:
        raise invalid(
            "add_special_tokens: got false, expected true; send the prompt as token ids, which stay as they are"
        )
    return [
        inference_pb2.GenerateRequest(
            request_id=request_id if len(prompts) == 1 else f"{request_id}-{index}",
            model=body.model or "",
            sampling=sampling,
            echo=bool(body.echo),
            priority=body.priority or 0,
            **prompt,
        )
        for index, prompt in enumerate(prompts)
    ]


def _prompts(prompt: str | list[Any]) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"text": prompt}]
    kinds = {type(item) for item in prompt}
    if len(kinds) != 1:
        kind = "an empty list" if not kinds else "texts, ids and lists mixed"
        raise invalid(f"prompt: got {kind}, expected a text, token ids, or a list of either; change it")
    if kinds == {int}:
        return [{"tokens": inference_pb2.TokenPrompt(token_ids=prompt)}]
    if len(prompt) > MAX_PROMPTS:
        raise invalid(f"prompt: got {len(prompt)} prompts, expected at most {MAX_PROMPTS}; send several requests")
    if kinds == {str}:
        return [{"text": text} for text in prompt]
    return [{"tokens": inference_pb2.TokenPrompt(token_ids=item)} for item in prompt]
