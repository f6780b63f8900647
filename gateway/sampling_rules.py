"""The ranges of sampling parameters, and the defaults that only the gateway can fill in."""

import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from baton.convert import structured_from_pb
from baton.errors import BatonError, invalid
from baton.model_spec import ModelSpec
from baton.rpc import sampling_pb2
from baton.sampling_limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    problem_with_choice,
)
from baton.structured_rules import problem_with_structured
from baton.types import SamplingParams
from gateway.bad_words import Encode, bad_word_sequences, check_bad_words

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_LOGIT_BIAS = 100.0
MAX_SEED = 2**63 - 1


class _Range(NamedTuple):
    field: str
    expected: str
    default: float
    least: float
    most: float
    least_excluded: bool = False

    def check(self, value: float) -> None:
        above = value > self.least if self.least_excluded else value >= self.least
        if not (math.isfinite(value) and above and value <= self.most):
            got = f"{value:g}" if isinstance(value, float) else value
            raise invalid(
                f"{self.field}: got {got}, expected {self.expected}; change it or leave it out for {self.default:g}"
            )


_RANGES = (
    _Range("temperature", "0 (greedy) to 100", 1.0, 0.0, 100.0),
    _Range("top_k", "0 (all tokens, as is -1) or more", 0, -1, math.inf),
    _Range("top_p", "above 0 and at most 1", 1.0, 0.0, 1.0, least_excluded=True),
    _Range("min_p", "0 to 1", 0.0, 0.0, 1.0),
    _Range("presence_penalty", "-2 to 2", 0.0, -2.0, 2.0),
    _Range("frequency_penalty", "-2 to 2", 0.0, -2.0, 2.0),
    _Range("repetition_penalty", "a finite number above 0", 1.0, 0.0, math.inf, least_excluded=True),
)


def check_ranges(pb: sampling_pb2.SamplingParams, vocab_size: int) -> None:
    """All that can be checked without knowing the prompt.

    Raises:
        BatonError: INVALID_ARGUMENT naming the first field that is out of range.
    """
    for rule in _RANGES:
        if pb.HasField(rule.field):
            rule.check(getattr(pb, rule.field))
    for field in ("logprobs", "prompt_logprobs"):
        value = getattr(pb, field)
        if pb.HasField(field) and not 0 <= value <= MAX_LOGPROBS:
            raise invalid(f"{field}: got {value}, expected 0 to {MAX_LOGPROBS}; ask for fewer alternatives")
    if pb.HasField("seed") and pb.seed > MAX_SEED:
        raise invalid(f"seed: got {pb.seed}, expected 0 to {MAX_SEED}; take a smaller one or leave it out")
    _check_logit_bias(pb, vocab_size)
    _check_stops(pb)
    _check_token_ids("stop_token_ids", pb.stop_token_ids, MAX_STOP_TOKEN_IDS, vocab_size)
    _check_token_ids("allowed_token_ids", pb.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS, vocab_size)
    check_bad_words(pb.bad_words)
    if pb.bad_word_token_ids:
        raise invalid("bad_word_token_ids: got a value, expected none: workers alone get it; send bad_words")
    if pb.HasField("structured") and (problem := problem_with_structured(structured_from_pb(pb.structured))):
        raise invalid(problem)


class Prompt(NamedTuple):
    """What the sampling parameters of a request depend on."""

    num_tokens: int
    echo: bool


def resolve_sampling(
    pb: sampling_pb2.SamplingParams, prompt: Prompt, spec: ModelSpec, max_model_len: int, encode: Encode
) -> SamplingParams:
    """The parameters with every default decided. `pb` has passed `check_ranges`, the prompt leaves room for a token.

    Args:
        encode: as in `bad_word_sequences`

    Raises:
        BatonError: INVALID_ARGUMENT when max_tokens or min_tokens does not fit, or nothing is left to draw.
    """
    max_tokens = _max_tokens(pb, prompt, max_model_len)
    if not 0 <= pb.min_tokens <= max_tokens:
        raise invalid(f"min_tokens: got {pb.min_tokens}, expected 0 to {max_tokens} (max_tokens); change either")
    optional = {rule.field: getattr(pb, rule.field) for rule in _RANGES if pb.HasField(rule.field)}
    optional["top_k"] = max(0, pb.top_k)
    num_logprobs = pb.logprobs if pb.HasField("logprobs") else None
    of_echo = num_logprobs if prompt.echo else None
    eos = () if pb.ignore_eos else spec.eos_token_ids
    params = SamplingParams(
        **optional,
        logit_bias=dict(pb.logit_bias),
        seed=pb.seed if pb.HasField("seed") else secrets.randbits(63),
        max_tokens=max_tokens,
        min_tokens=pb.min_tokens,
        stop_token_ids=tuple(dict.fromkeys((*pb.stop_token_ids, *eos))),
        num_logprobs=num_logprobs,
        bad_words=bad_word_sequences(pb.bad_words, encode),
        allowed_token_ids=tuple(dict.fromkeys(pb.allowed_token_ids)),
        num_prompt_logprobs=pb.prompt_logprobs if pb.HasField("prompt_logprobs") else of_echo,
        structured=structured_from_pb(pb.structured) if pb.HasField("structured") else None,
    )
    if problem := problem_with_choice(params, spec.vocab_size):
        raise invalid(problem)
    return params


def _max_tokens(pb: sampling_pb2.SamplingParams, prompt: Prompt, max_model_len: int) -> int:
    room = max_model_len - prompt.num_tokens
    max_tokens = pb.max_tokens if pb.HasField("max_tokens") else room
    if max_tokens == 0 and prompt.echo:
        return 1  # computed, but not shown
    if max_tokens < 1:
        raise invalid(f"max_tokens: got {max_tokens}, expected at least 1, or 0 with echo; raise it or leave it out")
    if max_tokens > room:
        raise invalid(
            f"max_tokens: got {max_tokens}, expected at most {room} (context {max_model_len} minus {prompt.num_tokens} "
            "prompt tokens); shorten the prompt or lower max_tokens"
        )
    return max_tokens


def _check_logit_bias(pb: sampling_pb2.SamplingParams, vocab_size: int) -> None:
    if len(pb.logit_bias) > MAX_LOGIT_BIASES:
        raise invalid(f"logit_bias: got {len(pb.logit_bias)} entries, expected at most {MAX_LOGIT_BIASES}; send fewer")
    for token_id, bias in pb.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            raise _outside_vocabulary("logit_bias", token_id, vocab_size)
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:  # also false for NaN
            raise invalid(
                f"logit_bias: got {bias:g} for token {token_id}, expected -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}; "
                "take a bias in this range"
            )


def _check_stops(pb: sampling_pb2.SamplingParams) -> None:
    if len(pb.stop) > MAX_STOP_STRINGS:
        raise invalid(f"stop: got {len(pb.stop)} strings, expected at most {MAX_STOP_STRINGS}; send fewer")
    for index, stop in enumerate(pb.stop):
        if not 1 <= len(stop) <= MAX_STOP_STRING_CHARS:
            raise invalid(
                f"stop[{index}]: got {len(stop)} characters, expected 1 to {MAX_STOP_STRING_CHARS}; change or drop it"
            )


def _check_token_ids(field: str, token_ids: Sequence[int], most: int, vocab_size: int) -> None:
    if len(token_ids) > most:
        raise invalid(f"{field}: got {len(token_ids)} ids, expected at most {most}; send fewer")
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise _outside_vocabulary(field, token_id, vocab_size)


def _outside_vocabulary(field: str, token_id: int, vocab_size: int) -> BatonError:
    return invalid(
        f"{field}: got token id {token_id}, expected 0 to {vocab_size - 1} (the model's vocabulary); drop it"
    )
