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


def usage_answer(usages: Iterable[tuple[int, sampling_pb2.Usage]]) -> UsageAnswer:
    """The sum over all answers; a prompt that several share counts once.

    Args:
        usages: with the index of the answer to its prompt, in any order
    """
    prompt = completion = cached = 0
    for index, usage in usages:
        completion += usage.completion_tokens
        if index == 0:
            prompt += usage.prompt_tokens
            cached += usage.cached_prompt_tokens
    return UsageAnswer(prompt, completion, prompt + completion, PromptTokensDetails(cached))
