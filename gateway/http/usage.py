"""Token counts, as OpenAI's API tells them."""

from collections.abc import Iterable

import msgspec

from baton.rpc import sampling_pb2


class PromptTokensDetails(msgspec.Struct):
    """What the prompt cost less than it looks."""

    cached_tokens: int


class UsageAnswer(msgspec.Struct):
    """Of a whole request: all prompts and all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_answer(usages: Iterable[sampling_pb2.Usage]) -> UsageAnswer:
    """The sum."""
    prompt = completion = cached = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        completion += usage.completion_tokens
        cached += usage.cached_prompt_tokens
    return UsageAnswer(prompt, completion, prompt + completion, PromptTokensDetails(cached))
