from baton.rpc import kv_pb2 as _kv_pb2
from baton.rpc import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_IN_USE: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_UNREACHABLE: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_IN_USE: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_UNREACHABLE: WorkerState

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerEntry(_message.Message):
    __slots__ = ("worker", "role", "address", "state", "requests", "stats")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    worker: _kv_pb2.WorkerRef
    role: _worker_pb2.WorkerRole
    address: str
    state: WorkerState
    requests: int
    stats: _worker_pb2.WorkerStats
    def __init__(self, worker: _Optional[_Union[_kv_pb2.WorkerRef, _Mapping]] = ..., role: _Optional[_Union[_worker_pb2.WorkerRole, str]] = ..., address: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., requests: _Optional[int] = ..., stats: _Optional[_Union[_worker_pb2.WorkerStats, _Mapping]] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "requests_queued", "answers_running", "answers_limit")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerEntry]
    requests_queued: int
    answers_running: int
    answers_limit: int
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerEntry, _Mapping]]] = ..., requests_queued: _Optional[int] = ..., answers_running: _Optional[int] = ..., answers_limit: _Optional[int] = ...) -> None: ...

class AdminDrainRequest(_message.Message):
    __slots__ = ("worker", "timeout_s")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    worker: str
    timeout_s: float
    def __init__(self, worker: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class AdminDrainResponse(_message.Message):
    __slots__ = ("requests_open",)
    REQUESTS_OPEN_FIELD_NUMBER: _ClassVar[int]
    requests_open: int
    def __init__(self, requests_open: _Optional[int] = ...) -> None: ...

class FlushCacheRequest(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, workers: _Optional[_Iterable[str]] = ...) -> None: ...

class FlushCacheResponse(_message.Message):
    __slots__ = ("blocks", "failed")
    class BlocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FailedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.ScalarMap[str, int]
    failed: _containers.ScalarMap[str, str]
    def __init__(self, blocks: _Optional[_Mapping[str, int]] = ..., failed: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ("level", "logger")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOGGER_FIELD_NUMBER: _ClassVar[int]
    level: str
    logger: str
    def __init__(self, level: _Optional[str] = ..., logger: _Optional[str] = ...) -> None: ...

class SetLogLevelResponse(_message.Message):
    __slots__ = ("before",)
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    before: str
    def __init__(self, before: _Optional[str] = ...) -> None: ...
