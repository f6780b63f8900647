"""Fetching a request's trace from the stack's TraceStore, once all of its spans have arrived."""

import time

import grpc

from baton.cli.client import Answer, connect
from baton.rpc import trace_store_pb2, trace_store_pb2_grpc
from baton.telemetry.tree import TraceSpan, parse_spans

WAIT_S = 3.0
_POLL_S = 0.1
_SETTLED_S = 1.0
_CALL_TIMEOUT_S = 2.0

_GATEWAY = {"gateway.request", "gateway.tokenize", "gateway.route", "gateway.detokenize"}
_PREFILL = {"prefill.queue", "prefill.compute"}
_HAND_OVER = {"decode.reserve", "kv.transfer", "decode.queue"}


def expected_spans(answer: Answer) -> set[str]:
    """The names of the spans that this request's path makes at least."""
    if answer.handed_over:
        return _GATEWAY | _PREFILL | _HAND_OVER | {"decode.run"}
    return _GATEWAY | ({"decode.run"} if answer.hand_over.decode_worker else _PREFILL)


def fetch_trace(address: str, trace_id: str, expected: set[str], wait_s: float = WAIT_S) -> list[TraceSpan]:
    """The trace's spans: as soon as all expected ones are there, or nothing has come for a second, or after `wait_s`.

    Processes export every 200 ms, so a trace is complete only some time after its answer.

    Raises:
        grpc.RpcError: when the store does not answer.
    """
    deadline_s = time.monotonic() + wait_s
    spans: list[TraceSpan] = []
    changed_s = time.monotonic()
    with connect(address) as channel:
        stub = trace_store_pb2_grpc.TraceStoreStub(channel)
        while True:
            answer = stub.GetTrace(trace_store_pb2.GetTraceRequest(trace_id=trace_id), timeout=_CALL_TIMEOUT_S)
            latest = parse_spans(answer.otlp_traces_data)
            now_s = time.monotonic()
            if len(latest) != len(spans):
                spans, changed_s = latest, now_s
            names = {span.name for span in spans}
            settled = "gateway.request" in names and now_s - changed_s >= _SETTLED_S
            if expected <= names or settled or now_s >= deadline_s:
                return spans
            time.sleep(_POLL_S)


def try_fetch_trace(address: str, answer: Answer) -> tuple[list[TraceSpan], str | None]:
    """The spans, or none and the reason: a store that does not answer must not spoil an answer that came."""
    try:
        return fetch_trace(address, answer.trace_id, expected_spans(answer)), None
    except grpc.RpcError as error:
        return [], f"no trace: {error.code().name} from {address}: {error.details()}"
