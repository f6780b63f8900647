from baton.rpc import kv_pb2 as _kv_pb2
from baton.rpc import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_PREFILL: _ClassVar[WorkerRole]
    WORKER_ROLE_DECODE: _ClassVar[WorkerRole]
    WORKER_ROLE_AGGREGATED: _ClassVar[WorkerRole]
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_PREFILL: WorkerRole
WORKER_ROLE_DECODE: WorkerRole
WORKER_ROLE_AGGREGATED: WorkerRole

class PrefillRequest(_message.Message):
    __slots__ = ("request_id", "epoch", "prompt_token_ids", "sampling", "grant", "output_token_ids", "priority")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    grant: _kv_pb2.Grant
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., grant: _Optional[_Union[_kv_pb2.Grant, _Mapping]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ...) -> None: ...

class PrefillEvent(_message.Message):
    __slots__ = ("first_token", "done", "prompt_logprobs")
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    first_token: FirstToken
    done: PrefillDone
    prompt_logprobs: PromptLogprobs
    def __init__(self, first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., done: _Optional[_Union[PrefillDone, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("position", "logprobs")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    position: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    def __init__(self, position: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("token_id", "logprobs", "finish_reason", "cached_prompt_tokens", "output_position", "times")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_POSITION_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprobs: _sampling_pb2.TokenLogprobs
    finish_reason: _sampling_pb2.FinishReason
    cached_prompt_tokens: int
    output_position: int
    times: PromptTimes
    def __init__(self, token_id: _Optional[int] = ..., logprobs: _Optional[_Union[_sampling_pb2.TokenLogprobs, _Mapping]] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., cached_prompt_tokens: _Optional[int] = ..., output_position: _Optional[int] = ..., times: _Optional[_Union[PromptTimes, _Mapping]] = ...) -> None: ...

class PromptTimes(_message.Message):
    __slots__ = ("queue_us", "compute_us")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    compute_us: int
    def __init__(self, queue_us: _Optional[int] = ..., compute_us: _Optional[int] = ...) -> None: ...

class PrefillDone(_message.Message):
    __slots__ = ("transfer",)
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    transfer: TransferStats
    def __init__(self, transfer: _Optional[_Union[TransferStats, _Mapping]] = ...) -> None: ...

class TransferStats(_message.Message):
    __slots__ = ("blocks", "bytes", "writes", "post_us", "transfer_us", "exposed_us")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    POST_US_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_US_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_US_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    bytes: int
    writes: int
    post_us: int
    transfer_us: int
    exposed_us: int
    def __init__(self, blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., writes: _Optional[int] = ..., post_us: _Optional[int] = ..., transfer_us: _Optional[int] = ..., exposed_us: _Optional[int] = ...) -> None: ...

class CancelPrefillRequest(_message.Message):
    __slots__ = ("request_id", "epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class CancelPrefillResponse(_message.Message):
    __slots__ = ("fenced",)
    FENCED_FIELD_NUMBER: _ClassVar[int]
    fenced: bool
    def __init__(self, fenced: bool = ...) -> None: ...

class ExtendLeaseRequest(_message.Message):
    __slots__ = ("request_id", "epoch", "lease_deadline_unix_ns")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_DEADLINE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    lease_deadline_unix_ns: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., lease_deadline_unix_ns: _Optional[int] = ...) -> None: ...

class ExtendLeaseResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("request_id", "epoch", "prompt_token_ids", "sampling", "output_token_ids", "priority", "num_extra_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_EXTRA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    num_extra_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., num_extra_tokens: _Optional[int] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("grant", "cached_prompt_tokens", "renew_after_ms")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RENEW_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    grant: _kv_pb2.Grant
    cached_prompt_tokens: int
    renew_after_ms: int
    def __init__(self, grant: _Optional[_Union[_kv_pb2.Grant, _Mapping]] = ..., cached_prompt_tokens: _Optional[int] = ..., renew_after_ms: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("grant_id", "epoch")
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    grant_id: str
    epoch: int
    def __init__(self, grant_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("lease_deadline_unix_ns",)
    LEASE_DEADLINE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    lease_deadline_unix_ns: int
    def __init__(self, lease_deadline_unix_ns: _Optional[int] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("request_id", "epoch", "grant_id", "local", "answer_index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    ANSWER_INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    grant_id: str
    local: LocalPrompt
    answer_index: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., grant_id: _Optional[str] = ..., local: _Optional[_Union[LocalPrompt, _Mapping]] = ..., answer_index: _Optional[int] = ...) -> None: ...

class AttemptRef(_message.Message):
    __slots__ = ("request_id", "epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class LocalPrompt(_message.Message):
    __slots__ = ("prompt_token_ids", "sampling", "output_token_ids", "priority", "fork_of")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    FORK_OF_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    fork_of: AttemptRef
    def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., fork_of: _Optional[_Union[AttemptRef, _Mapping]] = ...) -> None: ...

class DecodeEvent(_message.Message):
    __slots__ = ("admitted", "tokens", "finished", "move_wanted", "moved", "prompt_logprobs")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MOVE_WANTED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    admitted: Admitted
    tokens: DecodeTokens
    finished: DecodeFinished
    move_wanted: MoveWanted
    moved: Moved
    prompt_logprobs: PromptLogprobs
    def __init__(self, admitted: _Optional[_Union[Admitted, _Mapping]] = ..., tokens: _Optional[_Union[DecodeTokens, _Mapping]] = ..., finished: _Optional[_Union[DecodeFinished, _Mapping]] = ..., move_wanted: _Optional[_Union[MoveWanted, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class Admitted(_message.Message):
    __slots__ = ("verify_us", "control_us")
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    CONTROL_US_FIELD_NUMBER: _ClassVar[int]
    verify_us: int
    control_us: int
    def __init__(self, verify_us: _Optional[int] = ..., control_us: _Optional[int] = ...) -> None: ...

class DecodeTokens(_message.Message):
    __slots__ = ("output_position", "token_ids", "logprobs", "cached_prompt_tokens", "times")
    OUTPUT_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    output_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    cached_prompt_tokens: int
    times: PromptTimes
    def __init__(self, output_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ..., cached_prompt_tokens: _Optional[int] = ..., times: _Optional[_Union[PromptTimes, _Mapping]] = ...) -> None: ...

class DecodeFinished(_message.Message):
    __slots__ = ("finish_reason", "cached_prompt_tokens")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _sampling_pb2.FinishReason
    cached_prompt_tokens: int
    def __init__(self, finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class MoveWanted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Moved(_message.Message):
    __slots__ = ("output_position", "transfer")
    OUTPUT_POSITION_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    output_position: int
    transfer: TransferStats
    def __init__(self, output_position: _Optional[int] = ..., transfer: _Optional[_Union[TransferStats, _Mapping]] = ...) -> None: ...

class MigrateRequest(_message.Message):
    __slots__ = ("request_id", "epoch", "grant", "num_reserved_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    NUM_RESERVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    grant: _kv_pb2.Grant
    num_reserved_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., grant: _Optional[_Union[_kv_pb2.Grant, _Mapping]] = ..., num_reserved_tokens: _Optional[int] = ...) -> None: ...

class MigrateResponse(_message.Message):
    __slots__ = ("moved", "fenced", "problem")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    moved: bool
    fenced: bool
    problem: str
    def __init__(self, moved: bool = ..., fenced: bool = ..., problem: _Optional[str] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("grant_id", "epoch", "fenced")
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    grant_id: str
    epoch: int
    fenced: bool
    def __init__(self, grant_id: _Optional[str] = ..., epoch: _Optional[int] = ..., fenced: bool = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetWorkerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker", "role", "model", "model_fingerprint", "max_model_len", "layout")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    worker: _kv_pb2.WorkerRef
    role: WorkerRole
    model: str
    model_fingerprint: str
    max_model_len: int
    layout: _kv_pb2.KvLayout
    def __init__(self, worker: _Optional[_Union[_kv_pb2.WorkerRef, _Mapping]] = ..., role: _Optional[_Union[WorkerRole, str]] = ..., model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., max_model_len: _Optional[int] = ..., layout: _Optional[_Union[_kv_pb2.KvLayout, _Mapping]] = ...) -> None: ...

class GetWorkerStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckIntegrityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetPrefixCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetPrefixCacheResponse(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    def __init__(self, blocks: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class MigrateOutRequest(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class MigrateOutResponse(_message.Message):
    __slots__ = ("requests_asked",)
    REQUESTS_ASKED_FIELD_NUMBER: _ClassVar[int]
    requests_asked: int
    def __init__(self, requests_asked: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("requests_open",)
    REQUESTS_OPEN_FIELD_NUMBER: _ClassVar[int]
    requests_open: int
    def __init__(self, requests_open: _Optional[int] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("blocks_total", "blocks_free", "blocks_cached", "blocks_active", "blocks_quarantined", "requests_running", "requests_waiting", "grants_open", "steps", "prefix_query_tokens", "prefix_hit_tokens", "preemptions", "digest_mismatches", "swap_preemptions", "swap_blocks_used")
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    GRANTS_OPEN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    SWAP_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SWAP_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_active: int
    blocks_quarantined: int
    requests_running: int
    requests_waiting: int
    grants_open: int
    steps: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    digest_mismatches: int
    swap_preemptions: int
    swap_blocks_used: int
    def __init__(self, blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_active: _Optional[int] = ..., blocks_quarantined: _Optional[int] = ..., requests_running: _Optional[int] = ..., requests_waiting: _Optional[int] = ..., grants_open: _Optional[int] = ..., steps: _Optional[int] = ..., prefix_query_tokens: _Optional[int] = ..., prefix_hit_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., digest_mismatches: _Optional[int] = ..., swap_preemptions: _Optional[int] = ..., swap_blocks_used: _Optional[int] = ...) -> None: ...
