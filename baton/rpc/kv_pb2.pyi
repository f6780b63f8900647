from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRef(_message.Message):
    __slots__ = ("name", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class KvLayout(_message.Message):
    __slots__ = ("version", "num_layers", "num_kv_heads", "head_dim", "block_size", "dtype", "order", "tp_rank", "tp_size", "model_fingerprint", "rope_variant")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    TP_RANK_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ROPE_VARIANT_FIELD_NUMBER: _ClassVar[int]
    version: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    order: str
    tp_rank: int
    tp_size: int
    model_fingerprint: str
    rope_variant: str
    def __init__(self, version: _Optional[int] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., block_size: _Optional[int] = ..., dtype: _Optional[str] = ..., order: _Optional[str] = ..., tp_rank: _Optional[int] = ..., tp_size: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., rope_variant: _Optional[str] = ...) -> None: ...

class KvEndpoint(_message.Message):
    __slots__ = ("connector", "metadata")
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    connector: str
    metadata: bytes
    def __init__(self, connector: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("grant_id", "request_id", "decode", "epoch", "first_block", "block_ids", "layout", "endpoint", "lease_deadline_unix_ns")
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    LEASE_DEADLINE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    grant_id: str
    request_id: str
    decode: WorkerRef
    epoch: int
    first_block: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    layout: KvLayout
    endpoint: KvEndpoint
    lease_deadline_unix_ns: int
    def __init__(self, grant_id: _Optional[str] = ..., request_id: _Optional[str] = ..., decode: _Optional[_Union[WorkerRef, _Mapping]] = ..., epoch: _Optional[int] = ..., first_block: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., layout: _Optional[_Union[KvLayout, _Mapping]] = ..., endpoint: _Optional[_Union[KvEndpoint, _Mapping]] = ..., lease_deadline_unix_ns: _Optional[int] = ...) -> None: ...

class ChunkDigest(_message.Message):
    __slots__ = ("start_token", "num_tokens", "digest")
    START_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    start_token: int
    num_tokens: int
    digest: int
    def __init__(self, start_token: _Optional[int] = ..., num_tokens: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class KvReady(_message.Message):
    __slots__ = ("grant_id", "request_id", "epoch", "decode_incarnation", "prefill", "digests", "first_token", "sampler_position", "sent_unix_ns", "drawn_token_ids")
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DECODE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_POSITION_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    DRAWN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    grant_id: str
    request_id: str
    epoch: int
    decode_incarnation: str
    prefill: WorkerRef
    digests: _containers.RepeatedCompositeFieldContainer[ChunkDigest]
    first_token: int
    sampler_position: int
    sent_unix_ns: int
    drawn_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, grant_id: _Optional[str] = ..., request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., decode_incarnation: _Optional[str] = ..., prefill: _Optional[_Union[WorkerRef, _Mapping]] = ..., digests: _Optional[_Iterable[_Union[ChunkDigest, _Mapping]]] = ..., first_token: _Optional[int] = ..., sampler_position: _Optional[int] = ..., sent_unix_ns: _Optional[int] = ..., drawn_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...
