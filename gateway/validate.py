"""From a client's request to one that every worker can serve, or to an error that says what to change."""

import uuid
from dataclasses import dataclass

from google.protobuf.message import Message

from baton.errors import BatonError, ErrorCode, invalid
from baton.model_spec import ModelSpec
from baton.rpc import inference_pb2
from baton.types import PRIORITIES, SamplingParams
from gateway.no_text import TokensOnlyCodec
from gateway.num_answers import ONE_ANSWER, NumAnswers, num_answers
from gateway.prompt import encode_prompt
from gateway.request_trace import RequestTrace
from gateway.sampling_rules import Prompt, check_ranges, resolve_sampling
from gateway.text import TextCodec

MAX_REQUEST_ID_CHARS = 128
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ValidatedRequest:
    """A request with every default decided and every field in range."""

    request_id: str  # the client's, or made here
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int  # lower is earlier
    stop_strings: tuple[str, ...]
    include_stop_str_in_output: bool
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    echo: str | None = None  # the prompt as text, to come back before the answer
    prompt_only: bool = False  # no answer is wanted
    num_answers: NumAnswers = ONE_ANSWER


class Validator:
    """Checks requests against one served model."""

    def __init__(self, spec: ModelSpec, codec: TextCodec | TokensOnlyCodec, max_message_mib: int) -> None:
        self._spec = spec
        self._codec = codec
        self._max_message_mib = max_message_mib

    async def validate(
        self, request: inference_pb2.GenerateRequest, max_model_len: int, trace: RequestTrace
    ) -> ValidatedRequest:
        """`max_model_len` is what the workers can take today. Tokenizing is recorded in `trace`.

        Raises:
            BatonError: RESOURCE_EXHAUSTED (too big), NOT_FOUND (no such model) or INVALID_ARGUMENT.
        """
        self.check_size(request)
        request_id = checked_request_id(request.request_id)
        self.check_model(request.model)
        check_ranges(request.sampling, self._spec.vocab_size)
        answers = num_answers(request.sampling)
        if request.sampling.stop and not self._codec.has_text:
            raise invalid("stop: got stop strings, but the model has no tokenizer; use stop_token_ids")
        priority = checked_priority(request.priority)
        with trace.child("gateway.tokenize") as span:
            token_ids = await encode_prompt(request, self._codec, self._spec.vocab_size)
            span.set_attribute("baton.prompt.kind", request.WhichOneof("prompt") or "none")
            span.set_attribute("baton.prompt.tokens", len(token_ids))
        if len(token_ids) >= max_model_len:
            raise invalid(
                f"prompt: got {len(token_ids)} tokens, expected at most {max_model_len - 1} (context {max_model_len} "
                "minus 1 token of output); shorten the prompt"
            )
        pb = request.sampling
        skip_special = pb.skip_special_tokens if pb.HasField("skip_special_tokens") else True
        return ValidatedRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling=resolve_sampling(
                pb, Prompt(len(token_ids), request.echo), self._spec, max_model_len, self._codec.encode_bare
            ),
            priority=priority,
            stop_strings=tuple(pb.stop),
            include_stop_str_in_output=pb.include_stop_str_in_output,
            skip_special_tokens=skip_special,
            spaces_between_special_tokens=(
                pb.spaces_between_special_tokens if pb.HasField("spaces_between_special_tokens") else True
            ),
            echo=self._echo(request, token_ids, skip_special) if request.echo else None,
            prompt_only=request.echo and pb.HasField("max_tokens") and pb.max_tokens == 0,
            num_answers=answers,
        )

    def _echo(self, request: inference_pb2.GenerateRequest, token_ids: list[int], skip_special: bool) -> str:
        """A text comes back as it was sent."""
        return request.text if request.WhichOneof("prompt") == "text" else self._codec.decode(token_ids, skip_special)

    def check_size(self, request: Message) -> None:
        """Raises:
        BatonError: RESOURCE_EXHAUSTED above --max-message-mib.
        """
        size_bytes = request.ByteSize()
        if size_bytes > self._max_message_mib * _MIB:
            raise BatonError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"request is {size_bytes / _MIB:.1f} MiB, the limit is {self._max_message_mib} MiB; shorten the "
                "prompt, send token ids, or raise --max-message-mib",
            )

    def check_model(self, name: str) -> None:
        """An empty name means the served model.

        Raises:
            BatonError: NOT_FOUND for any other one.
        """
        if name and name != self._spec.name:
            raise BatonError(
                ErrorCode.NOT_FOUND,
                f"model: got {name[:128]!r}, expected one of: {self._spec.name}; change model or leave it empty",
            )


def checked_priority(priority: int) -> int:
    """Raises:
    BatonError: INVALID_ARGUMENT when it is out of range.
    """
    if priority not in PRIORITIES:
        raise invalid(
            f"priority: got {priority}, expected {PRIORITIES[0]} (earliest) to {PRIORITIES[-1]}; 0 is the default"
        )
    return priority


def checked_request_id(request_id: str) -> str:
    """The client's id, or a new one when it gave none.

    Raises:
        BatonError: INVALID_ARGUMENT when it is too long or not printable.
    """
    if not request_id:
        return uuid.uuid4().hex
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise invalid(
            f"request_id: got {len(request_id)} characters, expected at most {MAX_REQUEST_ID_CHARS}; shorten it"
        )
    if not request_id.isprintable():
        raise invalid(f"request_id: got {request_id!r}, expected printable characters only; change it")
    return request_id
