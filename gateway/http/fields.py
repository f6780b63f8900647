"""Fields that completions and chats share: OpenAI's and vLLM's sampling parameters, with bounds."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from baton.errors import invalid
from baton.rpc import sampling_pb2
from gateway.http.structured import ResponseFormat, StructuredOutputs, structured_of

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
NumAnswers = Annotated[int, Meta(ge=-(2**31), le=1024)]  # bounds what is kept before the service looks at it
TokenIds = Annotated[list[TokenId], Meta(max_length=4096)]
Words = Annotated[list[str], Meta(max_length=4096)]
Json = dict[str, Any]


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream tells beside its tokens."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # taken, and answered by the last chunk's usage alone


class SamplingFields(msgspec.Struct, kw_only=True):
    """How the answer's tokens are chosen. null is the default everywhere; docs/sampling.md has the meanings."""

    model: str | None = None
    temperature: float | None = None
    top_k: Int32 | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[TokenId, float], Meta(max_length=4096)] | None = None
    seed: Seed | None = None
    n: NumAnswers | None = None
    best_of: Int32 | None = None
    min_tokens: Int32 | None = None
    stop: str | Words | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    bad_words: Words | None = None
    allowed_token_ids: TokenIds | None = None
    prompt_logprobs: Int32 | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    priority: Int32 | None = None
    request_id: Annotated[str, Meta(max_length=96)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | Json | None = None
    guided_regex: str | None = None
    guided_choice: Words | None = None
    guided_grammar: str | None = None
    # Known to other servers, with a meaning that this one would not keep: refused where they are set.
    use_beam_search: bool | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None

    @property
    def num_answers(self) -> int:
        """To each prompt; below 1 where the service is going to refuse it."""
        return 1 if self.n is None else self.n

    @property
    def wants_usage(self) -> bool:
        """Whether a stream's last chunk has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


_SAME_NAME = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "n",
    "best_of",
    "min_tokens",
    "include_stop_str_in_output",
    "stop_token_ids",
    "ignore_eos",
    "bad_words",
    "allowed_token_ids",
    "prompt_logprobs",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


def sampling_of(fields: SamplingFields, max_tokens: int | None, logprobs: int | None) -> sampling_pb2.SamplingParams:
    """The protocol's message; ranges are the validator's business.

    Raises:
        BatonError: INVALID_ARGUMENT for what is not served, or for two grammars at once.
    """
    _refuse_unserved(fields)
    values: dict[str, Any] = {name: getattr(fields, name) for name in _SAME_NAME}
    values |= {"max_tokens": max_tokens, "logprobs": logprobs}
    stop = fields.stop
    sampling = sampling_pb2.SamplingParams(
        **{name: value for name, value in values.items() if value is not None},
        stop=[stop] if isinstance(stop, str) else stop or (),
    )
    structured = structured_of(
        fields.response_format,
        fields.structured_outputs,
        StructuredOutputs(
            json=fields.guided_json,
            regex=fields.guided_regex,
            choice=fields.guided_choice,
            grammar=fields.guided_grammar,
        ),
    )
    if structured is not None:
        sampling.structured.CopyFrom(structured)
    return sampling


def _refuse_unserved(fields: SamplingFields) -> None:
    for name in ("use_beam_search", "truncate_prompt_tokens", "return_token_ids"):
        if getattr(fields, name):
            raise invalid(f"{name}: got {getattr(fields, name)}, expected none: it is not served; drop it")
    if fields.stream_options is not None and not fields.stream:
        raise invalid("stream_options: got some without stream; set stream to true, or drop them")
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs: got some together with stream; drop either, or use echo with logprobs")
