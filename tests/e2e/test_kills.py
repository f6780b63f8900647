"""kill -9 of workers under load, 200 times: no wrong token, no leak, and every request ends once."""

from pathlib import Path

import pytest

from tests.e2e.kills import nursed_stack, run_kills

KILLS = 200


@pytest.mark.timeout(900)
def test_nothing_is_wrong_leaked_or_lost(tiny_llama: Path, tmp_path: Path) -> None:
    with nursed_stack(tiny_llama, tmp_path) as stack:
        counts = run_kills(stack, KILLS)
    print(f"real_process_kills: {counts._replace(wrong=[], leaked=[], lost=[])}, and their problems: {counts[4:]}")
    assert (counts.kills, counts.wrong, counts.leaked, counts.lost) == (KILLS, [], [], [])
    assert counts.answered > counts.failed_clearly
