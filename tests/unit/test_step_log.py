"""Roles with a step log tell of each step, each write and each request's KV that they have verified."""

import itertools
from pathlib import Path

from engine.step_log import ReceivedRecord, Record, StepLog, StepRecord, WriteRecord, read_step_log
from tests.fakes.role_pair import PROMPT, Pair


def test_roles_tell_what_they_do(pair: Pair, tmp_path: Path) -> None:
    logs: dict[str, list[Record]] = {}
    for name, role in (("prefill", pair.prefill), ("decode", pair.decode)):
        role.context.step_log = StepLog(str(tmp_path / name))
    pair.start("a")
    pair.pump()
    for name, role in (("prefill", pair.prefill), ("decode", pair.decode)):
        role.context.close()
        logs[name] = read_step_log(tmp_path / name)
    chunks = [record for record in logs["prefill"] if isinstance(record, StepRecord)]
    assert [record.work.num_prompt_tokens for record in chunks] == [16, 16, 15]
    assert [record.work.num_drawn for record in chunks] == [0, 0, 1]
    assert [record.work.num_pairs for record in chunks] == [16 * 8.5, 16 * 24.5, 15 * 40]
    assert [record.idle_before for record in chunks] == [True, False, False]
    assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(chunks))
    num_bytes = sum(record.num_bytes for record in logs["prefill"] if isinstance(record, WriteRecord))
    assert num_bytes == 6 * pair.prefill.context.runner.layout.block_bytes
    (received,) = [record for record in logs["decode"] if isinstance(record, ReceivedRecord)]
    assert received.num_tokens == len(PROMPT)
    steps = [record.work for record in logs["decode"] if isinstance(record, StepRecord)]
    assert [(work.num_decodes, work.num_context) for work in steps] == [(1, len(PROMPT) + 1 + n) for n in range(5)]
