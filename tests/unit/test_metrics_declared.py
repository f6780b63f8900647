"""The declared metrics: conventions, the table in docs/metrics.md, and how plain numbers become series."""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from baton.directory.metrics import RedisMetrics
from baton.telemetry import metrics as declared
from baton.telemetry.buckets import STEP_SECONDS, STEP_SEQUENCES, STEP_TOKENS
from baton.telemetry.exposition import Metrics, family, histogram_family
from baton.telemetry.metrics import Kind, Metric, all_metrics
from baton.types import Distribution, FenceCounts, WriteCounts
from engine.block_pool import BlockPool
from engine.counts import EngineCounts

ROOT = Path(__file__).parents[2]


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def row(metric: Metric) -> str:
    """The table's row; a label that has one value in a process has no list of values."""
    values = [f"`{label.name}`" + (f": {', '.join(label.values)}" if label.values else "") for label in metric.labels]
    return f"| `{metric.name}` | {metric.kind} | {metric.unit or '-'} | {'; '.join(values) or '-'} | {metric.help} |"


def test_the_table_in_the_docs_has_every_metric_and_no_other() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    assert re.findall(r"^\| `baton_.*$", text, re.MULTILINE) == [row(metric) for metric in all_metrics().values()]


@pytest.mark.parametrize("metric", all_metrics().values(), ids=lambda metric: metric.name)
def test_a_name_follows_the_conventions(metric: Metric) -> None:
    stem = metric.name.removesuffix("_total")
    assert re.fullmatch(r"baton_(gateway_|worker_|redis_|hand_over_)[a-z_]+", metric.name)
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    assert all(stem.endswith(f"_{unit}") == (metric.unit == unit) for unit in ("seconds", "bytes"))
    assert not re.search(r"_(ms|us|count|sum|bucket|info_total)$", stem)
    assert metric.help.endswith(".")
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_the_number_of_series_of_a_process_is_bounded() -> None:
    unbounded = {metric.name for metric in all_metrics().values() if any(not label.values for label in metric.labels)}
    assert unbounded == {declared.WORKER_INFO.name}


def test_labelled_counters_begin_at_zero() -> None:
    metrics = Metrics()
    metrics.counter(declared.MIGRATIONS).labels("moved").inc()
    found = samples(metrics)
    assert found["baton_gateway_migrations_total", frozenset({("outcome", "moved")})] == 1
    assert found["baton_gateway_migrations_total", frozenset({("outcome", "stayed")})] == 0


def test_a_distribution_becomes_a_cumulative_histogram() -> None:
    counts = EngineCounts()
    for seconds in (0.0005, 0.001, 0.003, 99.0):
        counts.step(seconds, num_tokens=512, num_sequences=3)
    metrics, role = Metrics(), frozenset({("role", "decode")})
    metrics.read_at_scrape(
        lambda: [
            histogram_family(declared.STEP_TIME, {("decode",): counts.step_seconds.snapshot()}),
            histogram_family(declared.STEP_BATCH_TOKENS, {("decode",): counts.step_tokens.snapshot()}),
            histogram_family(declared.STEP_BATCH_REQUESTS, {("decode",): Distribution()}),
        ]
    )
    found = samples(metrics)
    name = "baton_worker_step_duration_seconds"
    by_bound = {dict(labels)["le"]: value for (n, labels), value in found.items() if n == f"{name}_bucket"}
    assert (by_bound["0.001"], by_bound["0.002"], by_bound["0.005"], by_bound["10.0"]) == (2, 2, 3, 3)
    assert by_bound["+Inf"] == found[f"{name}_count", role] == 4
    assert found[f"{name}_sum", role] == pytest.approx(99.0045)
    assert found["baton_worker_step_tokens_sum", role] == 4 * 512
    assert not any(n.startswith("baton_worker_step_requests") for n, _ in found)
    assert (declared.STEP_TIME.buckets, declared.STEP_BATCH_TOKENS.buckets) == (STEP_SECONDS, STEP_TOKENS)
    assert declared.STEP_BATCH_REQUESTS.buckets == STEP_SEQUENCES


def test_a_family_keeps_its_labels_apart() -> None:
    metrics = Metrics()
    values = [(("decode", "hit"), 3.0), (("decode", "miss"), 4.0)]
    metrics.read_at_scrape(lambda: [family(declared.PREFIX_TOKENS, values)])
    labels = frozenset({("role", "decode"), ("result", "miss")})
    assert samples(metrics)["baton_worker_prefix_tokens_total", labels] == 4


def test_writes_are_counted_with_those_that_failed() -> None:
    counts = EngineCounts()
    counts.write(num_blocks=2, num_bytes=200, transfer_us=30, ok=True)
    counts.write(num_blocks=1, num_bytes=100, transfer_us=5, ok=False)
    assert counts.writes() == WriteCounts(done=1, failed=1, blocks=3, bytes=300, us=35)


def test_quarantines_are_counted_by_how_they_end() -> None:
    pool = BlockPool(8)
    for fence_id in ("confirmed", "expired", "held"):
        blocks = pool.allocate(2)
        assert blocks is not None
        pool.quarantine(fence_id, blocks, until_unix_ns=100)
    pool.lift("confirmed")
    pool.lift("never heard of")
    pool.expire_quarantine(100, lambda fence_id: fence_id == "held")
    assert pool.fences() == FenceCounts(begun=3, confirmed=1, expired=1, held=1)
    pool.lift("held")
    pool.expire_quarantine(101, lambda fence_id: True)
    assert pool.fences() == FenceCounts(begun=3, confirmed=2, expired=1, held=0)
    assert pool.stats().free == 8


def test_redis_rounds_tell_errors_from_answers() -> None:
    metrics = Metrics()
    redis = RedisMetrics(metrics)
    with redis.round():
        pass
    with pytest.raises(OSError, match="away"), redis.round():
        raise OSError("away")
    found = {name: value for (name, labels), value in samples(metrics).items() if not labels}
    assert (found["baton_redis_up"], found["baton_redis_errors_total"]) == (0, 1)
    assert found["baton_redis_round_duration_seconds_count"] == 1
