"""A trace as a tree in the terminal: spans with their place in time, duration, service and a few attributes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from rich.text import Text
from rich.tree import Tree

_BAR_COLUMNS = 24
_GUIDE_COLUMNS = 4  # what rich puts before each level
_MAX_ATTRIBUTES = 6
_PLAIN = ("string_value", "int_value", "double_value", "bool_value")
_NOT_SHOWN = ("baton.request_id",)  # 32 characters that push out what a reader looks for
_APART = "baton.ttft"  # shown as a table, where they are shown
_PREFIXES = ("baton.", "gen_ai.")  # say nothing here


class TraceSpan(NamedTuple):
    """What the tree needs of one span."""

    name: str
    service: str
    span_id: str
    parent_id: str  # empty for a root
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, str | int | float | bool]
    events: tuple[str, ...]
    error: str | None

    @property
    def duration_ms(self) -> float:
        """From start to end; 0 where the end lies before the start."""
        return max(0, self.end_unix_ns - self.start_unix_ns) / 1e6


def parse_spans(otlp_traces_data: bytes) -> list[TraceSpan]:
    """The spans of a serialized TracesData, by start time; of a span that came twice the later one."""
    data = trace_pb2.TracesData.FromString(otlp_traces_data)
    spans: dict[str, TraceSpan] = {}
    for resource_spans in data.resource_spans:
        service = str(_attributes(resource_spans.resource.attributes).get("service.name", "?"))
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                spans[span.span_id.hex()] = _parse(span, service)
    return sorted(spans.values(), key=lambda span: (span.start_unix_ns, -span.end_unix_ns))


def render_tree(spans: Sequence[TraceSpan]) -> Tree:
    """The spans under their parents. A span whose parent is unknown stands at the top level."""
    if not spans:
        return Tree(Text("trace: no spans", style="bold"))
    start = min(span.start_unix_ns for span in spans)
    end = max(max(span.end_unix_ns for span in spans), start + 1)
    depths = _depths(spans)
    width = max(len(span.name) + _GUIDE_COLUMNS * depths[span.span_id] for span in spans)
    total_ms = (end - start) / 1e6
    tree = Tree(Text(f"trace: {len(spans)} spans in {total_ms:.1f} ms", style="bold"), guide_style="dim")
    branches: dict[str, Tree] = {}
    for span in sorted(spans, key=lambda s: (depths[s.span_id], s.start_unix_ns)):
        parent = branches.get(span.parent_id, tree) if depths[span.span_id] else tree
        label = _label(span, start, end, width - _GUIDE_COLUMNS * depths[span.span_id])
        branches[span.span_id] = parent.add(label)
    return tree


def _parse(span: trace_pb2.Span, service: str) -> TraceSpan:
    failed = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    return TraceSpan(
        name=span.name,
        service=service,
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_unix_ns=span.start_time_unix_nano,
        end_unix_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=tuple(event.name for event in span.events),
        error=(span.status.message or "error") if failed else None,
    )


def _attributes(pairs: Iterable[common_pb2.KeyValue]) -> dict[str, str | int | float | bool]:
    """Plain values; arrays as text, other kinds (maps, bytes) are left out."""
    values: dict[str, str | int | float | bool] = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in _PLAIN:
            values[pair.key] = getattr(pair.value, kind)
        elif kind == "array_value":
            items = (getattr(item, item.WhichOneof("value") or "", "") for item in pair.value.array_value.values)
            values[pair.key] = ",".join(str(item) for item in items)
    return values


def _depths(spans: Sequence[TraceSpan]) -> dict[str, int]:
    """Levels below the top. Where parents form a ring (a broken exporter), its first span is taken to the top."""
    by_id = {span.span_id: span for span in spans}
    depths: dict[str, int] = {}
    for span in spans:
        path: list[TraceSpan] = []
        current: TraceSpan | None = span
        while current is not None and current.span_id not in depths and current not in path:
            path.append(current)
            current = by_id.get(current.parent_id)
        base = depths[current.span_id] + 1 if current is not None and current.span_id in depths else 0
        for level, member in enumerate(reversed(path)):
            depths[member.span_id] = base + level
    return depths


def _label(span: TraceSpan, start: int, end: int, name_columns: int) -> Text:
    label = Text(overflow="fold")  # in a narrow terminal the details go on below the span, none is lost
    label.append(span.name.ljust(name_columns), style="red" if span.error else "cyan")
    label.append(" ")
    label.append(_bar(span, start, end), style="red" if span.error else "green")
    label.append(f" {span.duration_ms:9.2f} ms  ")
    label.append(span.service.removeprefix("baton-"), style="magenta")
    if span.error:
        label.append(f"  {span.error}", style="red")
    details = _details(span)
    if details:
        label.append("  " + details, style="dim")
    return label


def _bar(span: TraceSpan, start: int, end: int) -> str:
    """At least one cell, wherever the span lies."""
    first = min(_BAR_COLUMNS - 1, (span.start_unix_ns - start) * _BAR_COLUMNS // (end - start))
    last = min(_BAR_COLUMNS, max(first + 1, -((start - span.end_unix_ns) * _BAR_COLUMNS // (end - start))))
    return "·" * first + "█" * (last - first) + "·" * (_BAR_COLUMNS - last)


def _details(span: TraceSpan) -> str:
    shown = [
        (key, value) for key, value in span.attributes.items() if key not in _NOT_SHOWN and not key.startswith(_APART)
    ]
    parts = [f"{_short(key)}={_value(value)}" for key, value in shown[:_MAX_ATTRIBUTES]]
    counts = {name: span.events.count(name) for name in dict.fromkeys(span.events)}
    parts += [f"{count} {name}" if count > 1 else name for name, count in counts.items()]
    return " ".join(parts)


def _short(key: str) -> str:
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _value(value: str | int | float | bool) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
