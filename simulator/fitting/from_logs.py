"""Costs of a stack from a recorded run of it: the step logs of its workers."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from baton.errors import BatonError, ErrorCode
from engine.step_log import ReceivedRecord, Record, StepRecord, WriteRecord
from simulator.costs import Costs, LinkCosts, StepCosts, TurnCosts
from simulator.fitting.nonnegative import Fitted, fit

_NS = 1e9
_OUTLIER = 3.0  # times what the first fit says: left out of the second one
_LONGEST_TURN = 5.0  # medians: what is longer waited for something
_QUANTILES = 100
_FAST = LinkCosts(0.0, 1e12)  # where no write was seen

Log = Sequence[Record]


class _Fit(NamedTuple):
    costs: StepCosts
    mean_error: float


def costs_from_logs(prefill: Sequence[Log], decode: Sequence[Log], token_bytes: float) -> Costs:
    """Of all workers of both roles, by log; of aggregated ones, as `decode`. `token_bytes`: of the KV of a token.

    What messages take is not in logs: `messages_from_load` finds it.

    Raises:
        BatonError: FAILED_PRECONDITION when there are too few steps.
    """
    decode_fit = _steps(decode)
    prefill_fit = _steps(prefill) if prefill else decode_fit
    received = [record for log in decode for record in log if isinstance(record, ReceivedRecord)]
    num_received = sum(record.num_tokens for record in received)
    received_s = sum(record.verify_us for record in received) / 1e6
    return Costs(
        source=f"step logs; mean error of steps: prefill {prefill_fit.mean_error:.1%}, decode "
        f"{decode_fit.mean_error:.1%}",
        prefill=prefill_fit.costs,
        decode=decode_fit.costs,
        link=_link([record for log in prefill for record in log if isinstance(record, WriteRecord)]),
        prefill_turn=_prefill_turns(prefill),
        decode_turn=_decode_turns(decode, received_s / num_received if num_received else 0.0),
        kv_bytes_per_token=token_bytes,
    )


def _steps(logs: Sequence[Log]) -> _Fit:
    steps = [record for log in logs for record in log if isinstance(record, StepRecord)]
    measured = [(step.work, (step.end_ns - step.start_ns) / _NS) for step in steps]
    if not measured:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            "got no step of one of the roles; record a load that uses all workers",
        )
    decodes = [(work, seconds) for work, seconds in measured if not work.num_prompt_tokens]
    base_s = decode_s = context_s = 0.0
    if decodes:
        features = [(1.0, work.num_decodes, work.num_context) for work, _ in decodes]
        base_s, decode_s, context_s = _robust(features, [seconds for _, seconds in decodes]).factors
    rest = [
        (work, seconds - work.num_decodes * decode_s - work.num_context * context_s)
        for work, seconds in measured
        if work.num_prompt_tokens
    ]
    prompts = [(work, seconds) for work, seconds in rest if seconds > 0]
    prompt = [0.0, 0.0, 0.0]
    if prompts:
        rows = [(1.0, work.num_prompt_tokens, work.num_pairs) for work, _ in prompts]
        prompt = _robust(rows, [seconds for _, seconds in prompts]).factors
    costs = StepCosts(base_s, decode_s, context_s, prompt[0], prompt[1], prompt[2])
    ratios = sorted(seconds / costs.seconds(work) for work, seconds in measured if costs.seconds(work))
    noise = [ratios[(2 * number + 1) * len(ratios) // (2 * _QUANTILES)] for number in range(_QUANTILES)]
    return _Fit(
        msgspec.structs.replace(costs, noise=tuple(round(min(ratio, _OUTLIER), 4) for ratio in noise)),
        statistics.fmean(abs(ratio - 1) for ratio in ratios),
    )


def _robust(features: Sequence[Sequence[float]], values: Sequence[float]) -> Fitted:
    """Twice, the second time without outliers: a step that the machine took away for a while says nothing."""
    first = fit(features, values)
    kept = [
        (row, value)
        for row, value in zip(features, values, strict=True)
        if value < _OUTLIER * sum(factor * feature for factor, feature in zip(first.factors, row, strict=True))
    ]
    return fit([row for row, _ in kept], [value for _, value in kept]) if kept else first


def _link(writes: Sequence[WriteRecord]) -> LinkCosts:
    measured = [(write.num_bytes, write.transfer_us / 1e6) for write in writes if write.transfer_us > 0]
    if len(measured) < 2:
        return _FAST
    latency_s, byte_s = _robust([(1.0, size) for size, _ in measured], [seconds for _, seconds in measured]).factors
    return LinkCosts(latency_s, 1 / byte_s if byte_s else _FAST.bytes_s)


def _turns(log: Log) -> list[tuple[StepRecord, StepRecord, float]]:
    """Consecutive steps with nothing to wait for between them, and the seconds that passed there, verifying aside."""
    found: list[tuple[StepRecord, StepRecord, float]] = []
    before: StepRecord | None = None
    verify_s = 0.0
    for record in log:
        if isinstance(record, ReceivedRecord):
            verify_s += record.verify_us / 1e6
        elif isinstance(record, StepRecord):
            if before is not None and not record.idle_before:
                seconds = (record.start_ns - before.end_ns) / _NS - verify_s
                if seconds > 0:
                    found.append((before, record, seconds))
            before, verify_s = record, 0.0
    longest_s = _LONGEST_TURN * statistics.median(seconds for _, _, seconds in found) if found else 0.0
    return [turn for turn in found if turn[2] <= longest_s]


def _prefill_turns(logs: Sequence[Log]) -> TurnCosts:
    turns = [turn for log in logs for turn in _turns(log)]
    if not turns:
        return TurnCosts()
    features = [(1.0, before.work.num_prompt_tokens) for before, _, _ in turns]
    base_s, sent_token_s = _robust(features, [seconds for _, _, seconds in turns]).factors
    return TurnCosts(base_s=base_s, sent_token_s=sent_token_s)


def _decode_turns(logs: Sequence[Log], received_token_s: float) -> TurnCosts:
    turns = [turn for log in logs for turn in _turns(log)]
    if not turns:
        return TurnCosts(received_token_s=received_token_s)
    features = [(1.0, after.work.num_decodes) for _, after, _ in turns]
    base_s, sequence_s = _robust(features, [seconds for _, _, seconds in turns]).factors
    return TurnCosts(base_s=base_s, sequence_s=sequence_s, received_token_s=received_token_s)
