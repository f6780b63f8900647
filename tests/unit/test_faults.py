"""Faults of real processes: armed on purpose only, and exact about when."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from baton import faults
from baton.faults import VARIABLE, Action, Plan, PlannedFaults, Point, Rule

STEPS = "from baton import faults\nfor n in range(3):\n print(n, flush=True)\n faults.at(faults.Point.KV_POST)"


def run(plan: object) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, VARIABLE: plan if isinstance(plan, str) else json.dumps(plan)}
    return subprocess.run([sys.executable, "-c", STEPS], env=environ, capture_output=True, text=True, timeout=60)


def test_the_nth_time_is_the_nth_time(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    rule = {"point": "kv.post", "action": "kill", "nth": 2, "mark": str(mark)}
    ended = run({"only_for_tests": "yes", "rules": [rule]})
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "0\n1\n")
    assert mark.exists()


@pytest.mark.parametrize(
    "plan",
    ["", "1", {}, {"rules": []}, {"only_for_tests": "no", "rules": []}, {"only_for_tests": "yes", "rules": [{}]}],
)
def test_a_process_does_not_start_with_anything_else(plan: object) -> None:
    ended = run(plan)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "BATON_FAULTS: got" in ended.stderr
    assert "unset it unless this is a test" in ended.stderr


def test_messages_are_dropped_doubled_and_changed_by_one_bit() -> None:
    rules = tuple(
        Rule(Point.KV_READY_RECEIVED, action, nth)
        for nth, action in enumerate([Action.DROP, Action.DUPLICATE, Action.CORRUPT], start=1)
    )
    planned = PlannedFaults(Plan("yes", rules))
    found = [planned.messages(Point.KV_READY_RECEIVED, b"\x00" * 9) for _ in range(4)]
    assert found[:2] == [[], [b"\x00" * 9] * 2]
    assert sum(byte.bit_count() for byte in found[2][0]) == 1
    assert found[3] == [b"\x00" * 9]


def test_chances_are_drawn_from_the_seed() -> None:
    def draws(seed: int) -> list[int]:
        planned = PlannedFaults(Plan("yes", (Rule(Point.KV_POST, Action.DROP, chance=0.5),), seed))
        return [len(planned.messages(Point.KV_POST, b"x")) for _ in range(64)]

    assert draws(1) == draws(1) != draws(2)
    assert 10 < sum(draws(1)) < 54


def test_nothing_happens_unarmed() -> None:
    assert faults._faults is None
    faults.at(Point.KV_POST)
    assert faults.messages(Point.KV_READY_RECEIVED, b"x") == [b"x"]
