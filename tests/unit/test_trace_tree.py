"""The trace tree: order, depth, bars, and traces with missing parts; and what makes a span an error."""

from typing import Any

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rich.console import Console

from baton.telemetry.tracing import Tracing
from baton.telemetry.tree import parse_spans, render_tree

MS = 1_000_000
START = 1_700_000_000_000_000_000


def span(
    name: str, id_: int, parent: int | None, start_ms: float, end_ms: float, **attributes: str | int | float | bool
) -> trace_pb2.Span:
    made = trace_pb2.Span(
        name=name,
        trace_id=bytes(16),
        span_id=id_.to_bytes(8, "big"),
        parent_span_id=b"" if parent is None else parent.to_bytes(8, "big"),
        start_time_unix_nano=START + int(start_ms * MS),
        end_time_unix_nano=START + int(end_ms * MS),
    )
    for key, value in attributes.items():
        pair = made.attributes.add(key=key)
        kind = {str: "string_value", int: "int_value", float: "double_value", bool: "bool_value"}[type(value)]
        setattr(pair.value, kind, value)
    return made


def traces(**spans_by_service: list[trace_pb2.Span]) -> bytes:
    data = trace_pb2.TracesData()
    for service, spans in spans_by_service.items():
        group = data.resource_spans.add()
        pair = group.resource.attributes.add(key="service.name")
        pair.value.string_value = service
        group.scope_spans.add(spans=spans)
    return data.SerializeToString()


def lines(data: bytes, width: int = 160) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render_tree(parse_spans(data)))
    return capture.get().splitlines()


def test_children_stand_under_their_parents_by_time() -> None:
    data = traces(
        decode=[span("decode.run", 4, 1, 60, 100), span("decode.reserve", 3, 1, 10, 20)],
        gateway=[span("gateway.request", 1, None, 0, 100), span("gateway.route", 2, 1, 5, 10)],
    )
    header, *rows = lines(data)
    assert header == "trace: 4 spans in 100.0 ms"
    assert [row.split()[1] for row in rows] == ["gateway.request", "gateway.route", "decode.reserve", "decode.run"]
    assert rows[0].startswith("└── gateway.request")
    assert all(row.startswith("    ") for row in rows[1:])
    assert rows[3].split()[-3:] == ["40.00", "ms", "decode"]


def test_bars_show_when_and_stand_in_one_column() -> None:
    data = traces(
        gateway=[span("a", 1, None, 0, 24), span("second", 2, 1, 12, 18), span("instant", 3, 2, 23.99, 23.99)]
    )
    _, root, second, instant = lines(data)
    assert "█" * 24 in root
    assert "·" * 12 + "█" * 6 + "·" * 6 in second
    assert "·" * 23 + "█" in instant
    assert root.index("█") == second.index("·") == instant.index("·")


def test_attributes_and_events_are_shown_shortly() -> None:
    transfer = span("kv.transfer", 1, None, 0, 1, bytes=4096, gb_s=1.23456, ok=True)
    reasons = transfer.attributes.add(key="gen_ai.response.finish_reasons")
    reasons.value.array_value.values.add(string_value="stop")
    transfer.events.add(name="chunk")
    transfer.events.add(name="chunk")
    row = lines(traces(prefill=[transfer]))[1]
    assert "bytes=4096 gb_s=1.23 ok=True response.finish_reasons=stop 2 chunk" in row


def test_a_failed_span_shows_its_message() -> None:
    failed = span("kv.transfer", 1, None, 0, 1)
    failed.status.code = trace_pb2.Status.STATUS_CODE_ERROR
    failed.status.message = "digest mismatch"
    assert "digest mismatch" in lines(traces(prefill=[failed]))[1]


def test_a_span_with_an_unknown_parent_stands_at_the_top_with_its_children() -> None:
    data = traces(decode=[span("decode.run", 7, 99, 0, 10), span("child", 8, 7, 1, 2)])
    _, top, child = lines(data)
    assert top.startswith("└── decode.run")
    assert child.startswith("    └── child")


def test_broken_traces_lose_no_span() -> None:
    ring = [span("a", 1, 2, 0, 1), span("b", 2, 1, 0, 1), span("self", 3, 3, 0, 1), span("backwards", 4, None, 2, 1)]
    text = "\n".join(lines(traces(x=ring)))
    assert all(f" {name} " in text for name in ("a", "b", "self", "backwards"))


def test_a_span_that_came_twice_is_shown_once() -> None:
    data = traces(x=[span("a", 1, None, 0, 1), span("a", 1, None, 0, 5)])
    assert len(lines(data)) == 2


def test_nothing_is_shown_as_nothing() -> None:
    assert lines(b"") == ["trace: no spans"]


def test_a_narrow_terminal_wraps_details_and_cuts_nothing() -> None:
    spans = [span("gateway.request", 1, None, 0, 1), span("gateway.route", 2, 1, 0, 1, chosen="decode-0", why="z" * 90)]
    _, request, route, *details = lines(traces(gateway=spans), width=80)
    assert request.endswith("ms  gateway")
    assert "ms  gateway" in route
    text = "".join([route, *details]).replace(" ", "")
    assert "chosen=decode-0" in text
    assert text.count("z") == 90
    assert all(len(line) <= 80 for line in (request, route, *details))


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, None), ({"attributes": {"error.type": "cancelled"}}, "cancelled")],
)
def test_a_recorded_span_of_failed_work_is_an_error(options: dict[str, Any], message: str | None) -> None:
    exported = InMemorySpanExporter()
    tracing = Tracing("test", None)
    tracing._provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing.record("prefill.compute", None, 1, 2, **options)
    (span,) = exported.get_finished_spans()
    assert (span.status.is_ok, span.status.description) == (message is None, message)
