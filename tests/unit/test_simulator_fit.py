"""Costs from a recorded run: a simulated run, recorded, gives the costs that it was made with."""

import random
from pathlib import Path

import msgspec
import pytest

from baton.bench.load.fleet import LoadResult
from baton.bench.run_folder import Run, describe
from baton.errors import BatonError
from engine.step_log import ReceivedRecord, Record, StepLog, StepRecord, StepWork, WriteRecord, read_step_log
from simulator.costs import MessageCosts, StepCosts, TurnCosts
from simulator.fitting.from_logs import costs_from_logs
from simulator.fitting.messages import with_messages
from tests.unit.test_simulator import CLUSTER, COSTS, load, simulate

PREFILL = StepCosts(0.0, 0.0, 0.0, 5e-3, 4e-4, 1e-8)
DECODE = StepCosts(8e-3, 6e-4, 2e-7)
PREFILL_TURN, DECODE_TURN = TurnCosts(1e-3, 0.0, 3e-6), TurnCosts(2e-4, 1e-5, 0.0, 4e-6)


def recorded(steps: StepCosts, turns: TurnCosts, works: list[StepWork]) -> list[Record]:
    """With a tenth of noise, a pause now and then, and an idle wait."""
    draw, now_ns, found = random.Random(0), 10**18, list[Record]()
    for number, work in enumerate(works):
        idle = number % 10 == 0
        before = works[number - 1]
        turn_s = turns.base_s + turns.sequence_s * work.num_decodes + turns.sent_token_s * before.num_prompt_tokens
        received = ReceivedRecord(100, 400)
        if work.num_decodes and number % 7 == 0:
            found.append(received)
            turn_s += received.verify_us / 1e6
        now_ns += int((5.0 if idle else turn_s) * 1e9)
        seconds = steps.seconds(work) * draw.uniform(0.9, 1.1) * (8 if number % 50 == 49 else 1)
        found.append(StepRecord(work, now_ns, now_ns + int(seconds * 1e9), idle))
        now_ns += int(seconds * 1e9)
        if work.num_prompt_tokens:
            size = work.num_prompt_tokens * 1000
            found.append(WriteRecord(size, round((1e-3 + size / 2e9) * 1e6)))
    return found


def test_logs_give_the_costs_that_made_them() -> None:
    draw = random.Random(1)
    prompts = [StepWork(0, 0, n, n * draw.uniform(n / 2, n + 900), 1) for n in draw.choices(range(20, 512), k=300)]
    decodes = [StepWork(n, n * draw.randrange(50, 3000), 0, 0.0, n) for n in draw.choices(range(1, 30), k=300)]
    logs = recorded(PREFILL, PREFILL_TURN, prompts), recorded(DECODE, DECODE_TURN, decodes)
    costs = costs_from_logs([logs[0]], [logs[1]], token_bytes=1000.0)
    for work in prompts:
        assert costs.prefill.seconds(work) == pytest.approx(PREFILL.seconds(work), rel=0.05)
    for work in decodes:
        assert costs.decode.seconds(work) == pytest.approx(DECODE.seconds(work), rel=0.05)
    assert costs.prefill_turn.base_s == pytest.approx(PREFILL_TURN.base_s, rel=0.05)
    assert costs.prefill_turn.sent_token_s == pytest.approx(PREFILL_TURN.sent_token_s, rel=0.05)
    assert costs.decode_turn.received_token_s == pytest.approx(DECODE_TURN.received_token_s)
    assert costs.decode_turn.sequence_s == pytest.approx(DECODE_TURN.sequence_s, rel=0.05)
    assert costs.link.bytes_s == pytest.approx(2e9, rel=0.05)
    assert costs.link.latency_s == pytest.approx(1e-3, rel=0.05)
    assert 0.85 < min(costs.decode.noise) < 1 < costs.decode.noise[95] < 1.15
    assert max(costs.decode.noise) <= 3


def test_messages_are_what_a_simulation_without_them_lacks() -> None:
    messages = MessageCosts(client_s=2e-3, call_s=4e-3 / 3, token_s=2e-3, ready_s=5e-4)
    options = load("random", requests=10, arrivals="closed", concurrency=1)
    rows, _ = simulate(options=options, costs=msgspec.structs.replace(COSTS, messages=messages))
    lone = Run(describe(options, LoadResult(rows, [], False), None, {}, []), rows)
    found = with_messages(COSTS, lone, CLUSTER).messages
    assert msgspec.structs.astuple(found) == pytest.approx(msgspec.structs.astuple(messages), rel=1e-3)
    with pytest.raises(BatonError, match="no answer of two tokens"):
        with_messages(COSTS, Run(lone.info, []), CLUSTER)


def test_noise_keeps_runs_repeatable() -> None:
    noisy = msgspec.structs.replace(COSTS.decode, noise=(0.9, 1.0, 1.3))
    costs = msgspec.structs.replace(COSTS, prefill=noisy, decode=noisy)
    runs = [msgspec.json.encode(simulate(costs=costs)[0]) for _ in range(2)]
    assert runs[0] == runs[1]
    other = simulate(msgspec.structs.replace(CLUSTER, seed=1), costs=costs)[0]
    assert msgspec.json.encode(other) != runs[0]


def test_a_log_is_read_back_up_to_where_it_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "new" / "steps.jsonl"
    log = StepLog(str(path))
    records = [StepRecord(StepWork(2, 30, 0, 0.0, 2), 5, 9, True), WriteRecord(10, 3), ReceivedRecord(4, 1)]
    for record in records:
        log.add(record)
    log.close()
    log.close()
    assert read_step_log(path) == records
    path.write_bytes(path.read_bytes()[:-5])
    assert read_step_log(path) == records[:-1]
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(BatonError, match=r"line 1: got b'{}'"):
        read_step_log(path)
    with pytest.raises(BatonError, match=r"--step-log .* cannot be written"):
        StepLog(str(path / "below a file"))


def test_too_few_steps_are_told() -> None:
    with pytest.raises(BatonError, match="step"):
        costs_from_logs([[]], [[]], 1.0)
