"""Costs of a GPU from the results that are committed: steps of one kind at a time, and the transfers between two."""

import statistics
from collections.abc import Sequence
from typing import Any

from baton.bench.costs import CEILINGS, head_weights, kv_bytes_per_token, matrix_weights
from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec
from simulator.costs import Costs, Floor, LinkCosts, MessageCosts, StepCosts, TurnCosts, make_floor
from simulator.fitting.nonnegative import fit

_MEMORY_BYTES = {"NVIDIA H200": 141e9}
_MEMORY_SHARE = 0.9  # --gpu-memory-utilization
_ACTIVATION_BYTES = 4e9
_ITEM_BYTES = 2


def costs_from_results(
    lines: Sequence[dict[str, Any]], spec: ModelSpec, gpu: str, link: LinkCosts, messages: MessageCosts
) -> Costs:
    """Steps from `decode_step_ms` and `prefill_ttft_ms` of the model on that GPU, digests from `kv_digest_share`.

    `link` and `messages` are assumptions: there is no measurement between hosts.

    Raises:
        BatonError: FAILED_PRECONDITION when the lines lack one of these.
    """
    own = [line for line in lines if line.get("model") == spec.name and line.get("gpu") == gpu]
    decodes = [line for line in own if line["metric"] == "decode_step_ms"]
    prompts = [line for line in own if line["metric"] == "prefill_ttft_ms"]
    shares = [line["value"] for line in own if line["metric"] == "kv_digest_share"]
    speeds = [line["value"] for line in own if line["metric"] == "kv_transfer_gb_s"]
    if not (decodes and prompts and gpu in CEILINGS):
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"got {len(decodes)} decode_step_ms and {len(prompts)} prefill_ttft_ms of {spec.name} on {gpu}, expected "
            f"some of both, on one of {', '.join(CEILINGS)}; measure with benchmarks/gpu/steps.py",
        )
    floor = make_floor(spec, CEILINGS[gpu], _ITEM_BYTES)
    batches = [(line["params"]["batch"], line["params"]["context"]) for line in decodes]
    # Measured contexts are all alike, so reading KV cannot be told from the rest: it counts as what it takes at least.
    context_s = floor.kv_bytes_per_token / floor.read_bytes_s
    rest_s = [
        line["value"] / 1e3 - batch * context * context_s
        for line, (batch, context) in zip(decodes, batches, strict=True)
    ]
    decode = fit([(1, batch) for batch, _ in batches], rest_s)
    sizes = [line["params"]["tokens"] for line in prompts]
    prompt = fit(
        [(1, tokens, tokens * (tokens + 1) / 2) for tokens in sizes], [line["value"] / 1e3 for line in prompts]
    )
    steps = _steps(decode.factors, context_s, prompt.factors, floor)
    token_bytes = kv_bytes_per_token(spec, _ITEM_BYTES)
    digest_s = statistics.median(shares) * token_bytes / (statistics.median(speeds) * 1e9) if shares and speeds else 0.0
    return Costs(
        source=f"{spec.name} on {gpu}, benchmarks/results; mean error of steps: decode {decode.mean_error:.1%}, prompt "
        f"{prompt.mean_error:.1%}; link and messages are assumed",
        prefill=steps,
        decode=steps,
        link=link,
        prefill_turn=TurnCosts(sent_token_s=digest_s),
        decode_turn=TurnCosts(received_token_s=digest_s),
        messages=messages,
        overlap=True,
        kv_bytes_per_token=float(token_bytes),
        kv_bytes=_MEMORY_BYTES[gpu] * _MEMORY_SHARE
        - (matrix_weights(spec) + 2 * head_weights(spec)) * _ITEM_BYTES
        - _ACTIVATION_BYTES,
    )


def _steps(decode: Sequence[float], context_s: float, prompt: Sequence[float], floor: Floor) -> StepCosts:
    return StepCosts(decode[0], decode[1], context_s, prompt[0], prompt[1], prompt[2], floor)
