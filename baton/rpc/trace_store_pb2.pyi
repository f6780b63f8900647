from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetTraceRequest(_message.Message):
    __slots__ = ("trace_id",)
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    def __init__(self, trace_id: _Optional[str] = ...) -> None: ...

class GetTraceResponse(_message.Message):
    __slots__ = ("otlp_traces_data",)
    OTLP_TRACES_DATA_FIELD_NUMBER: _ClassVar[int]
    otlp_traces_data: bytes
    def __init__(self, otlp_traces_data: _Optional[bytes] = ...) -> None: ...
