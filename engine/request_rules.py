"""What a request must be for a step to compute it: the gateway has checked the same, but a worker trusts no caller.

One request that raises within a step would end the step for all others, and with it the engine core.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from baton.sampling_limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_SEQUENCES,
    MAX_BAD_WORD_TOKENS,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    problem_with_choice,
)
from baton.types import PRIORITIES, SamplingParams

_MAX_STOP_TOKEN_IDS = 2 * MAX_STOP_TOKEN_IDS  # the client's and the model's own
_FLOAT32_MAX = 3.4028234663852886e38  # what the protocol's floats can say


class _Range(NamedTuple):
    field: str
    expected: str
    least: float
    most: float
    least_excluded: bool = False

    def problem(self, value: float) -> str | None:
        above = value > self.least if self.least_excluded else value >= self.least
        if above and value <= self.most:  # neither holds for NaN
            return None
        return f"{self.field}: got {value:g}, expected {self.expected}"


_FLOATS = (
    _Range("temperature", "a finite number, 0 (greedy) or more", 0.0, _FLOAT32_MAX),
    _Range("top_p", "above 0 and at most 1", 0.0, 1.0, least_excluded=True),
    _Range("min_p", "0 to 1", 0.0, 1.0),
    _Range("presence_penalty", "a finite number", -_FLOAT32_MAX, _FLOAT32_MAX),
    _Range("frequency_penalty", "a finite number", -_FLOAT32_MAX, _FLOAT32_MAX),
    _Range("repetition_penalty", "a finite number above 0", 0.0, _FLOAT32_MAX, least_excluded=True),
)


def problem_with_prompt(prompt: Sequence[int], vocab_size: int, max_model_len: int) -> str | None:
    """Why a prompt cannot be computed, or None."""
    if not prompt:
        return "prompt: got 0 tokens, expected at least 1"
    if len(prompt) >= max_model_len:
        return (
            f"prompt: got {len(prompt)} tokens, expected at most {max_model_len - 1} "
            f"(context {max_model_len} with room for one more); shorten it"
        )
    return _outside_vocabulary("prompt", prompt, vocab_size)


def problem_with_output(
    prompt: Sequence[int], output: Sequence[int], sampling: SamplingParams, vocab_size: int, max_model_len: int
) -> str | None:
    """Why `output`, which an earlier attempt has delivered, cannot be continued, or None."""
    most = min(sampling.max_tokens, max_model_len - len(prompt)) - 1
    if output and len(output) > most:
        return (
            f"output: got {len(output)} tokens, expected at most {most}, so that one more can be drawn (max_tokens "
            f"{sampling.max_tokens}, context {max_model_len}, prompt {len(prompt)}); such a request is over"
        )
    return _outside_vocabulary("output", output, vocab_size)


def problem_with_priority(priority: int) -> str | None:
    """Why a request cannot be ranked, or None: beyond these bounds aging would take too long to help the others."""
    if priority in PRIORITIES:
        return None
    return f"priority: got {priority}, expected {PRIORITIES[0]} to {PRIORITIES[-1]}"


def problem_with_sampling(sampling: SamplingParams, vocab_size: int) -> str | None:
    """Why no token can be drawn with these parameters, or None."""
    problem = next(filter(None, (rule.problem(getattr(sampling, rule.field)) for rule in _FLOATS)), None)
    if problem:
        return problem
    if sampling.top_k < 0:
        return f"top_k: got {sampling.top_k}, expected 0 (all tokens) or more"
    if not 0 <= sampling.seed < 2**64:
        return f"seed: got {sampling.seed}, expected 0 to {2**64 - 1}"
    if sampling.max_tokens < 1:
        return f"max_tokens: got {sampling.max_tokens}, expected at least 1"
    if sampling.min_tokens < 0:
        return f"min_tokens: got {sampling.min_tokens}, expected at least 0"
    most = min(MAX_LOGPROBS, vocab_size)
    if sampling.num_logprobs is not None and not 0 <= sampling.num_logprobs <= most:
        return f"logprobs: got {sampling.num_logprobs}, expected 0 to {most}; ask for fewer alternatives"
    if sampling.num_prompt_logprobs is not None and not 0 <= sampling.num_prompt_logprobs <= most:
        return f"prompt_logprobs: got {sampling.num_prompt_logprobs}, expected 0 to {most}; ask for fewer alternatives"
    for token, bias in sampling.logit_bias.items():
        if not math.isfinite(bias):
            return f"logit_bias: got {bias:g} for token {token}, expected a finite number"
    return _problem_with_tokens(sampling, vocab_size)


def _problem_with_tokens(sampling: SamplingParams, vocab_size: int) -> str | None:
    """Lists that are too long would make every step of all requests slow."""
    lists: list[tuple[str, Sequence[int], int]] = [
        ("stop_token_ids", sampling.stop_token_ids, _MAX_STOP_TOKEN_IDS),
        ("logit_bias", list(sampling.logit_bias), MAX_LOGIT_BIASES),
        ("allowed_token_ids", sampling.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS),
    ]
    lists += [(f"bad_words[{at}]", word, MAX_BAD_WORD_TOKENS) for at, word in enumerate(sampling.bad_words)]
    if len(sampling.bad_words) > MAX_BAD_WORD_SEQUENCES:
        return f"bad_words: got {len(sampling.bad_words)} sequences, expected at most {MAX_BAD_WORD_SEQUENCES}"
    for field, token_ids, longest in lists:
        if len(token_ids) > longest:
            return f"{field}: got {len(token_ids)} token ids, expected at most {longest}"
        if problem := _outside_vocabulary(field, token_ids, vocab_size):
            return problem
    if not all(sampling.bad_words):
        return "bad_words: got an empty sequence, expected at least one token id in each"
    return problem_with_choice(sampling, vocab_size)


def _outside_vocabulary(field: str, token_ids: Sequence[int], vocab_size: int) -> str | None:
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return None
    outside = next(token for token in token_ids if not 0 <= token < vocab_size)
    return f"{field}: got token id {outside}, expected 0 to {vocab_size - 1} (the model's vocabulary)"
