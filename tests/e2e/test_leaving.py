"""Workers that leave under load and come back under the same address: no client notices, nothing is left behind."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest
from typer.testing import CliRunner

from baton.cli.app import app
from baton.faults import VARIABLE, Action, Plan, Point, Rule
from baton.local.stack import LocalStack
from baton.rpc import worker_pb2, worker_pb2_grpc
from tests.e2e.client import assert_at_rest, worker_stats
from tests.e2e.restarts import Counts, restart_under_load, small_pools
from tests.e2e.under_load import LEASE_S, assert_same, busiest, mixed_requests, restart, stack_options, stream_all


@pytest.fixture(scope="module")
def stack(smollm2: Path) -> Iterator[LocalStack]:
    options = stack_options(
        str(smollm2), kv_cache_bytes=96 << 20, max_model_len=1024, swap_space_bytes=0, drain_timeout_s=120.0
    )
    with LocalStack(options) as stack:
        yield stack


def drain(stack: LocalStack, name: str, timeout_s: float) -> None:
    result = CliRunner().invoke(app, ["drain", stack.worker_addresses[name], "--timeout-s", str(timeout_s)])
    assert result.exit_code == 0, result.output


def assert_left(stack: LocalStack, name: str) -> None:
    """With exit code 0, which the launcher does not take for a failure."""
    deadline = time.monotonic() + 60
    while name in stack.pids:
        assert time.monotonic() < deadline, f"{name} is still there"
        time.sleep(0.05)
    stack.check_running()


def test_a_decode_worker_finishes_what_it_runs(stack: LocalStack) -> None:
    requests = mixed_requests(100, 60, 40)
    expected = stream_all(stack, requests, lambda tokens: True, lambda: None)
    left: list[str] = []

    def leave() -> None:
        left.append(busiest(stack, "decode"))
        os.kill(stack.pids[left[0]], signal.SIGTERM)

    got = stream_all(stack, requests, lambda tokens: tokens >= 60, leave)
    assert_same(got, expected)
    assert left[0] in {answer[-1].hand_over.decode_worker for answer in got}  # nobody was sent elsewhere
    assert_left(stack, left[0])
    # Nothing of it may go there now.
    assert_same(stream_all(stack, requests, lambda tokens: True, lambda: None), expected)
    assert_at_rest([address for name, address in stack.worker_addresses.items() if name != left[0]])
    restart(stack, left[0])


def test_what_does_not_end_in_time_goes_on_elsewhere(stack: LocalStack) -> None:
    requests = mixed_requests(200, 60, 60)
    requests[4].sampling.structured.regex = "[a-z ]{300,}"  # a grammar has to follow as well
    expected = stream_all(stack, requests, lambda tokens: True, lambda: None)
    left: list[str] = []

    def leave() -> None:
        left.append(busiest(stack, "decode"))
        drain(stack, left[0], timeout_s=0)

    got = stream_all(stack, requests, lambda tokens: tokens >= 60, leave)
    assert_left(stack, left[0])
    assert_same(got, expected)
    log = (stack.run_folder / "gateway.log").read_text()
    moved = log.count(f" instead of {left[0]}")
    print(f"{moved} requests moved")
    assert moved > 0
    assert "attempt" not in log  # nothing was computed again
    assert_at_rest([address for name, address in stack.worker_addresses.items() if name != left[0]], within_s=3)
    restart(stack, left[0])


def test_a_worker_that_dies_in_the_middle_of_a_move(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first request has just stopped there, and nobody knows where it goes on."""
    plan = Plan(only_for_tests="yes", rules=(Rule(Point.MIGRATE_STOPPED, Action.KILL, nth=1),))
    monkeypatch.setenv(VARIABLE, msgspec.json.encode(plan).decode())
    restart(stack, "decode-0")
    monkeypatch.delenv(VARIABLE)
    address = stack.worker_addresses["decode-0"]

    def has_some(tokens: int) -> bool:
        return tokens >= 20 and worker_stats(address).requests_running > 0

    def move_all() -> None:
        with grpc.insecure_channel(address) as channel:
            worker_pb2_grpc.WorkerControlStub(channel).MigrateOut(worker_pb2.MigrateOutRequest(), timeout=30)

    requests = mixed_requests(4000, 40, 30)
    got = stream_all(stack, requests, has_some, move_all)
    assert_same(got, stream_all(stack, requests, lambda tokens: True, lambda: None))
    assert "decode-0" not in stack.pids
    survivors = [address for name, address in stack.worker_addresses.items() if name != "decode-0"]
    assert_at_rest(survivors, within_s=LEASE_S + 5)
    restart(stack, "decode-0")


def test_a_prefill_worker_leaves_with_its_last_write(stack: LocalStack) -> None:
    requests = mixed_requests(3000, 400, 6)
    got = stream_all(stack, requests, lambda tokens: tokens >= 1, lambda: drain(stack, "prefill-1", 120.0))
    assert_left(stack, "prefill-1")
    assert_same(got, stream_all(stack, requests, lambda tokens: True, lambda: None))
    # No lease is waited for: what it had begun has ended well.
    assert_at_rest([address for name, address in stack.worker_addresses.items() if name != "prefill-1"], within_s=3)
    restart(stack, "prefill-1")


def assert_unnoticed(counts: Counts, max_growth: float) -> None:
    print(counts)
    assert counts.errors == []
    assert counts.wrong == 0
    assert counts.requests > sum(counts.restarts.values())
    assert max(counts.growth().values()) < max_growth


def test_restarts_under_the_same_address(stack: LocalStack, smollm2: Path) -> None:
    # Blocks that nothing has been written to yet count as memory only later: less than the pools are large.
    assert_unnoticed(restart_under_load(stack, smollm2, num_rounds=3, num_warm_up=1), max_growth=0.07)
    assert_at_rest([*stack.worker_addresses.values()], within_s=20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_restarts_of_each(smollm2: Path) -> None:
    with LocalStack(small_pools(smollm2)) as stack:
        assert_unnoticed(restart_under_load(stack, smollm2, num_rounds=50, num_warm_up=10), max_growth=0.05)
        assert_at_rest([*stack.worker_addresses.values()], within_s=20)
