"""A client of the gateway: one request, its streamed answers, and when each token came."""

import time
from collections.abc import Callable
from typing import cast

import grpc
import msgspec
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from baton.errors import BatonError, ErrorCode
from baton.grpc_util.channel import open_blocking_channel
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2
from baton.tls import Tls

MAX_MESSAGE_BYTES = 64 << 20  # a trace of 10,000 spans fits
_LIST_TIMEOUT_S = 10.0
_CONNECTION_ENDED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class Answer(msgspec.Struct):
    """One finished answer. Times are seconds since the call began."""

    text: str
    token_ids: list[int]
    token_times_s: list[float]  # one a token
    end_s: float
    finish_reason: str
    trace_id: str
    usage: sampling_pb2.Usage
    hand_over: inference_pb2.HandOver
    logprobs: list[sampling_pb2.TokenLogprobs] = []  # one a token, where asked for
    prompt_logprobs: list[sampling_pb2.TokenLogprobs] = []  # one a prompt token, where asked for; the first is empty

    @property
    def ttft_ms(self) -> float:
        """From the call to the first token."""
        return self.token_times_s[0] * 1e3 if self.token_times_s else float("nan")

    @property
    def handed_over(self) -> bool:
        """Whether KV moved: not on one worker alone, nor when the first token was the last one."""
        moved = self.hand_over
        return bool(moved.decode_worker) and moved.prefill_worker not in ("", moved.decode_worker)

    @property
    def itl_ms(self) -> list[float]:
        """Gaps between tokens."""
        return [(b - a) * 1e3 for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False)]


def connect(address: str) -> grpc.Channel:
    """A channel, with TLS where BATON_TLS_DIR says so. A proxy is not used for this machine's own addresses."""
    host = address.rpartition(":")[0]
    own = host in ("127.0.0.1", "localhost", "[::1]")
    options = [("grpc.enable_http_proxy", 0 if own else 1), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
    return open_blocking_channel(address, Tls.from_environment(), options)


def first_model(channel: grpc.Channel, address: str) -> str:
    """The name of the model that the gateway serves (the first, if there are more).

    Raises:
        BatonError: as `call_error`; NOT_FOUND when it serves none.
    """
    stub = inference_pb2_grpc.InferenceStub(channel)
    try:
        models = stub.ListModels(inference_pb2.ListModelsRequest(), timeout=_LIST_TIMEOUT_S).models
    except grpc.RpcError as error:
        raise call_error(error, address) from error
    if not models:
        raise BatonError(ErrorCode.NOT_FOUND, f"the gateway at {address} serves no model; start its workers")
    return str(models[0].name)


class _Partial:
    """One answer while it comes."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._pieces: list[str] = []
        self._times_s: list[float] = []
        self._logprobs: list[sampling_pb2.TokenLogprobs] = []
        self._prompt_logprobs: list[sampling_pb2.TokenLogprobs] = []
        self._last = inference_pb2.GenerateResponse()
        self._end_s = 0.0

    def add(self, response: inference_pb2.GenerateResponse, now_s: float) -> None:
        """The next response."""
        before_s = self._times_s[-1] if self._times_s else None
        self._times_s += _spread(before_s, now_s, len(response.token_ids))
        self.token_ids += response.token_ids
        self._logprobs += response.logprobs
        self._prompt_logprobs += response.prompt_logprobs
        self._pieces.append(response.text)
        self._last, self._end_s = response, now_s

    def finish(self, trace_id: str) -> Answer:
        """The answer, when there is no more."""
        last = self._last
        return Answer(
            text="".join(self._pieces),
            token_ids=self.token_ids,
            token_times_s=self._times_s,
            end_s=self._end_s,
            finish_reason=sampling_pb2.FinishReason.Name(last.finish_reason).removeprefix("FINISH_REASON_").lower(),
            trace_id=trace_id,
            usage=last.usage,
            hand_over=last.hand_over,
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
        )


def stream_answers(
    channel: grpc.Channel,
    address: str,
    request: inference_pb2.GenerateRequest,
    timeout_s: float,
    on_text: Callable[[str], None],
) -> list[Answer]:
    """Sends the request and calls `on_text` with each piece of an answer as it comes; the answers by their index.

    Raises:
        BatonError: as `call_error`; UNAVAILABLE when the answer breaks off, DEADLINE_EXCEEDED after `timeout_s`.
    """
    stub = inference_pb2_grpc.InferenceStub(channel)
    partial: dict[int, _Partial] = {}
    trace_id = ""
    start = time.perf_counter()
    try:
        for response in stub.Generate(request, timeout=timeout_s):
            trace_id = trace_id or response.trace_id
            partial.setdefault(response.index, _Partial()).add(response, time.perf_counter() - start)
            on_text(response.text)
    except grpc.RpcError as error:
        num_tokens = sum(len(answer.token_ids) for answer in partial.values())
        raise _answer_error(error, address, num_tokens, timeout_s) from error
    partial = partial or {0: _Partial()}
    return [partial[index].finish(trace_id) for index in sorted(partial)]


def call_error(error: grpc.RpcError, address: str) -> BatonError:
    """A failed call as "CODE: message", with what the server said about retrying."""
    code: grpc.StatusCode = error.code()
    message = f"{code.name}: {error.details()}"
    retry_after_s = None
    status = rpc_status.from_call(cast(grpc.Call, error))  # of a finished call, every RpcError is one
    for detail in status.details if status else ():
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            retry_after_s = info.retry_delay.ToMilliseconds() / 1000
            message += f" (try again in {retry_after_s:g} s)"
    if code is grpc.StatusCode.UNAVAILABLE and status is None:
        message += f"; is a gateway running at {address}? `baton up` starts a stack, --gateway names another"
    return BatonError(ErrorCode.__members__.get(code.name, ErrorCode.INTERNAL), message, retry_after_s)


def _answer_error(error: grpc.RpcError, address: str, num_tokens: int, timeout_s: float) -> BatonError:
    """As `call_error`, but where the gateway has said nothing itself, what that means after `num_tokens` tokens."""
    code: grpc.StatusCode = error.code()
    if rpc_status.from_call(cast(grpc.Call, error)) is not None:
        return call_error(error, address)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"{code.name}: {num_tokens} tokens of the answer came within {timeout_s:g} s; raise --timeout-s"
        return BatonError(ErrorCode.DEADLINE_EXCEEDED, message)
    if num_tokens and code in _CONNECTION_ENDED:
        message = (
            f"{code.name}: the answer broke off after {num_tokens} tokens, since the gateway at {address} was stopped "
            f"or has died ({error.details()}); start it and ask again"
        )
        return BatonError(ErrorCode.UNAVAILABLE, message)
    return call_error(error, address)


def _spread(before: float | None, now: float, count: int) -> list[float]:
    """Times of tokens that came in one message: evenly over the gap before it, for the first message all at once."""
    if before is None:
        return [now] * count
    return [before + (now - before) * (index + 1) / count for index in range(count)]
