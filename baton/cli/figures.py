"""A finished request's figures: latencies, tokens, and where its KV went."""

import math
from typing import Any

from rich.table import Table

from baton.bench.percentiles import percentile
from baton.cli.client import Answer
from baton.rpc import sampling_pb2


def timings(answer: Answer) -> dict[str, float | None]:
    """TTFT and ITL in milliseconds, as the client saw them; None where there were too few tokens."""
    gaps = answer.itl_ms
    values = {
        "ttft_ms": answer.ttft_ms,
        "itl_mean_ms": sum(gaps) / len(gaps) if gaps else math.nan,
        "itl_p50_ms": percentile(gaps, 0.50),
        "itl_p99_ms": percentile(gaps, 0.99),
        "total_ms": answer.end_s * 1e3,
    }
    return {name: None if math.isnan(value) else round(value, 3) for name, value in values.items()}


def hand_over_figures(answer: Answer) -> dict[str, Any]:
    """The hand-over as plain values."""
    names = [
        "prefill_worker",
        "decode_worker",
        "blocks",
        "bytes",
        "transfer_us",
        "exposed_us",
        "verify_us",
        "control_us",
    ]
    return {name: getattr(answer.hand_over, name) for name in names}


def as_json(answer: Answer) -> dict[str, Any]:
    """Everything about the answer, for --json."""
    usage = answer.usage
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "logprobs": [_logprobs(entry) for entry in answer.logprobs],
        "prompt_logprobs": [_logprobs(entry) for entry in answer.prompt_logprobs],
        "finish_reason": answer.finish_reason,
        "trace_id": answer.trace_id,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_prompt_tokens": usage.cached_prompt_tokens,
        },
        "timings": timings(answer),
        "hand_over": hand_over_figures(answer),
    }


def _logprobs(entry: sampling_pb2.TokenLogprobs) -> dict[str, Any] | None:
    """None for the prompt's first token, which nothing precedes."""
    if not entry.HasField("sampled"):
        return None
    top = [{"token_id": one.token_id, "logprob": one.logprob} for one in entry.top]
    return {"token_id": entry.sampled.token_id, "logprob": entry.sampled.logprob, "top": top}


def figures_table(answer: Answer) -> Table:
    """The figures for a terminal."""
    values = {name: "-" if value is None else f"{value:.1f} ms" for name, value in timings(answer).items()}
    itl = f"mean {values['itl_mean_ms']}, p50 {values['itl_p50_ms']}, p99 {values['itl_p99_ms']}"
    usage = answer.usage
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("TTFT", values["ttft_ms"])
    table.add_row("ITL", itl)
    table.add_row("Total", f"{values['total_ms']}, finished by {answer.finish_reason}")
    cached = f" ({usage.cached_prompt_tokens} cached)" if usage.cached_prompt_tokens else ""
    table.add_row("Tokens", f"{usage.prompt_tokens} in{cached}, {usage.completion_tokens} out")
    for row in _hand_over_rows(answer):
        table.add_row(*row)
    return table


def _hand_over_rows(answer: Answer) -> list[tuple[str, str]]:
    moved = answer.hand_over
    if not answer.handed_over:
        return [("KV", f"stayed on {moved.decode_worker or moved.prefill_worker or 'one worker'}")]
    sizes = f"{moved.blocks} blocks, {moved.bytes:,} bytes"
    times = f"transfer {moved.transfer_us} µs, exposed {moved.exposed_us} µs, verify {moved.verify_us} µs"
    return [
        ("KV", f"{moved.prefill_worker} → {moved.decode_worker}, {sizes}"),
        ("Hand-over", f"{times}, control {moved.control_us} µs"),
    ]
