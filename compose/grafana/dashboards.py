"""The Grafana dashboards: `python -m compose.grafana.dashboards` writes their JSON beside this file."""

import json
from pathlib import Path

from compose.grafana.panels import Dashboard, Panel, Query, to_json

FOLDER = Path(__file__).parent / "dashboards"
_RATE = "[$__rate_interval]"


def _rate(series: str, by: str = "") -> str:
    """A second's increase, over all processes."""
    return f"sum{f' by ({by})' if by else ''} (rate({series}{_RATE}))"


def _quantiles(histogram: str, selector: str = "") -> tuple[Query, ...]:
    """Median and tail of a histogram, over all processes."""
    return tuple(
        Query(f"histogram_quantile({q}, {_rate(f'{histogram}_bucket{selector}', 'le')})", f"p{q * 100:g}")
        for q in (0.5, 0.9, 0.99)
    )


def _share(part: str, whole: str) -> str:
    return f"{part} / {whole}"


def _mean(histogram: str, by: str, selector: str = "") -> str:
    return _share(_rate(f"{histogram}_sum{selector}", by), _rate(f"{histogram}_count{selector}", by))


OVERVIEW = Dashboard(
    "baton-overview",
    "Baton: overview",
    (
        Panel("Requests ended", "reqps", (Query(_rate("baton_gateway_requests_total", "outcome"), "{{outcome}}"),)),
        Panel("Requests running", "none", (Query("sum (baton_gateway_requests_running)", "running"),)),
        Panel("Time to first token", "s", _quantiles("baton_gateway_time_to_first_token_seconds")),
        Panel("Time between tokens", "s", _quantiles("baton_gateway_inter_token_latency_seconds")),
        Panel(
            "Tokens a second",
            "none",
            (
                Query(_rate("baton_gateway_output_tokens_total"), "output"),
                Query(_rate("baton_gateway_prompt_tokens_total", "source"), "prompt, {{source}}"),
            ),
        ),
        Panel("Duration of a request", "s", _quantiles("baton_gateway_request_duration_seconds")),
        Panel(
            "Workers that a gateway knows",
            "none",
            (Query("max by (role, state) (baton_gateway_workers)", "{{role}}, {{state}}"),),
        ),
        Panel(
            "Attempts that follow a failed one",
            "reqps",
            (Query(_rate("baton_gateway_retries_total", "after"), "after {{after}}"),),
            "A worker's failure costs its requests another attempt, and clients a pause.",
        ),
    ),
)

POOL = Dashboard(
    "baton-pool",
    "Baton: one pool of workers",
    (
        Panel(
            "Requests in the engine",
            "none",
            (Query('sum by (role, state) (baton_worker_requests{role=~"$role"})', "{{role}} {{state}}"),),
        ),
        Panel("Duration of an engine step", "s", _quantiles("baton_worker_step_duration_seconds", '{role=~"$role"}')),
        Panel(
            "Batch size, requests",
            "none",
            (Query(_mean("baton_worker_step_requests", "role", '{role=~"$role"}'), "{{role}}, mean"),),
        ),
        Panel(
            "Tokens computed a second",
            "none",
            (Query(_rate('baton_worker_step_tokens_sum{role=~"$role"}', "role"), "{{role}}"),),
        ),
        Panel(
            "Preemptions",
            "reqps",
            (Query(_rate('baton_worker_preemptions_total{role=~"$role"}', "role, how"), "{{role}}, {{how}}"),),
            "Requests whose blocks were taken away because the pool was full.",
        ),
        Panel(
            "Attempts ended",
            "reqps",
            (Query(_rate('baton_worker_attempts_total{role=~"$role"}', "role, outcome"), "{{role}} {{outcome}}"),),
        ),
        Panel(
            "Workers that drain",
            "none",
            (Query('sum by (role) (baton_worker_draining{role=~"$role"})', "{{role}}"),),
        ),
        Panel(
            "Age of an engine's figures",
            "s",
            (Query('max by (role) (baton_worker_engine_stats_age_seconds{role=~"$role"})', "{{role}}, oldest"),),
            "Longer than a step: an engine core does not answer its service.",
        ),
    ),
    role=True,
)

KV = Dashboard(
    "baton-kv",
    "Baton: KV cache and hand-over",
    (
        Panel(
            "Blocks by state", "none", (Query("sum by (role, state) (baton_worker_kv_blocks)", "{{role}} {{state}}"),)
        ),
        Panel(
            "Prefix cache: share of tokens found",
            "percentunit",
            (
                Query(
                    _share(
                        _rate('baton_worker_prefix_tokens_total{result="hit"}', "role"),
                        _rate("baton_worker_prefix_tokens_total", "role"),
                    ),
                    "{{role}}",
                ),
            ),
        ),
        Panel(
            "Parts of a hand-over, mean",
            "s",
            (Query(_mean("baton_hand_over_part_seconds", "part"), "{{part}}"),),
            "What a request waits for until it decodes; transfer counts only from the last step's end on.",
        ),
        Panel(
            "Parts of a hand-over, 99th percentile",
            "s",
            (
                Query(
                    f"histogram_quantile(0.99, {_rate('baton_hand_over_part_seconds_bucket', 'le, part')})", "{{part}}"
                ),
            ),
        ),
        Panel("KV written", "Bps", (Query(_rate("baton_worker_kv_transfer_bytes_total", "role"), "by {{role}}"),)),
        Panel(
            "Rate of a write",
            "Bps",
            (
                Query(
                    _share(
                        _rate("baton_worker_kv_transfer_bytes_total"), _rate("baton_worker_kv_transfer_seconds_total")
                    ),
                    "bytes a second under way",
                ),
            ),
        ),
        Panel(
            "Quarantines and fences",
            "none",
            (
                Query('sum (baton_worker_kv_blocks{state="quarantined"})', "blocks quarantined"),
                Query("sum (baton_worker_tethered_quarantines)", "kept by a tether"),
                Query(_rate("baton_worker_quarantines_total"), "begun a second"),
                Query(_rate("baton_worker_fences_total", "how"), "ended a second, {{how}}"),
            ),
        ),
        Panel(
            "What went wrong",
            "none",
            (
                Query(_rate("baton_worker_digest_mismatches_total"), "digests rejected a second"),
                Query(_rate('baton_worker_kv_writes_total{result="failed"}'), "writes failed a second"),
                Query(_rate("baton_gateway_reserve_refusals_total"), "reservations refused a second"),
                Query(_rate("baton_gateway_migrations_total", "outcome"), "migrations a second, {{outcome}}"),
            ),
        ),
        Panel("Grants open", "none", (Query("sum (baton_worker_grants_open)", "open"),)),
        Panel(
            "Redis",
            "s",
            (
                Query("max (baton_redis_publish_lag_seconds)", "oldest change not published"),
                Query(
                    f"histogram_quantile(0.99, {_rate('baton_redis_round_duration_seconds_bucket', 'le')})",
                    "round, p99",
                ),
            ),
        ),
    ),
)

SLO = Dashboard(
    "baton-slo",
    "Baton: objectives",
    (
        Panel(
            "Share of requests that kept the objective",
            "percentunit",
            (
                Query(
                    _share(
                        _rate('baton_gateway_slo_requests_total{met="true"}', "slo"),
                        _rate("baton_gateway_slo_requests_total", "slo"),
                    ),
                    "{{slo}}",
                ),
            ),
        ),
        Panel("Objectives", "s", (Query("max by (slo) (baton_gateway_slo_threshold_seconds)", "{{slo}}"),)),
        Panel(
            "Requests that missed it",
            "reqps",
            (Query(_rate('baton_gateway_slo_requests_total{met="false"}', "slo"), "{{slo}}"),),
        ),
        Panel(
            "Requests that Baton failed",
            "reqps",
            (
                Query(
                    _rate(
                        'baton_gateway_requests_total{outcome=~"unavailable|resource_exhausted|internal|deadline_exceeded"}',
                        "outcome",
                    ),
                    "{{outcome}}",
                ),
            ),
        ),
        Panel("Time to first token", "s", _quantiles("baton_gateway_time_to_first_token_seconds")),
        Panel("Time between tokens", "s", _quantiles("baton_gateway_inter_token_latency_seconds")),
    ),
)

DASHBOARDS = (OVERVIEW, POOL, KV, SLO)


def text_of(dashboard: Dashboard) -> str:
    """The file's content."""
    return json.dumps(to_json(dashboard), indent=2) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each.uid}.json").write_text(text_of(each))
