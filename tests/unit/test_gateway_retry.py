"""Which failures are tried again, how often, and the budget that all requests share."""

import pytest

from baton.errors import BatonError, ErrorCode, Reason
from baton.rpc import sampling_pb2
from baton.types import FinishReason, WorkerRef
from gateway.attempt import Tokens
from gateway.progress import Progress
from gateway.retry import Recovery, RetryBudget, RetryPolicy
from gateway.worker_errors import WorkerFailure

P0, P1, D0, D1 = (WorkerRef(name, "1") for name in ("p0", "p1", "d0", "d1"))


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def recovery(**limits: float) -> Recovery:
    policy = RetryPolicy(**limits)  # type: ignore[arg-type]
    return Recovery(policy, RetryBudget(policy))


def failure(worker: WorkerRef, *, lost: bool = False, at_work: bool = False, reason: Reason | None = None):
    return WorkerFailure(BatonError(ErrorCode.UNAVAILABLE, "gone", reason=reason), worker, lost, at_work)


def test_budget_is_a_tenth_of_the_requests_above_its_floor() -> None:
    clock = Clock()
    budget = RetryBudget(RetryPolicy(budget_floor=5), clock)
    assert [budget.take() for _ in range(6)] == [True] * 5 + [False]
    for _ in range(19):
        budget.count_request()
    assert [budget.take() for _ in range(2)] == [True, False]  # 1.9 were earned
    clock.now_s = 2.2
    assert [budget.take() for _ in range(4)] == [True, True, True, False]  # 0.9 + 2.2
    clock.now_s = 1000.0
    assert [budget.take() for _ in range(6)] == [True] * 5 + [False]  # time fills it up to its floor, not above


def test_a_spent_budget_ends_the_request_with_its_cause() -> None:
    spent = recovery(budget_floor=0)
    with pytest.raises(BatonError) as caught:
        spent.after(failure(D0), [P0, D0])
    assert caught.value.message == "gone (not tried elsewhere: this gateway has too many retries under way)"
    assert caught.value.retry_after_s is not None


def test_the_first_retry_is_at_once_and_the_next_ones_wait() -> None:
    tried = recovery(max_attempts=5, backoff_s=0.1)
    waits = [tried.after(failure(D0), [P0, D0]) for _ in range(4)]
    assert waits[0] == 0
    assert all(0 <= wait <= most for wait, most in zip(waits[1:], (0.1, 0.2, 0.4), strict=True))
    with pytest.raises(BatonError, match="gave up after 5 attempts: gone"):
        tried.after(failure(D0), [P0, D0])


def test_a_dead_worker_is_blamed_alone_and_otherwise_both() -> None:
    dead, mismatch = recovery(), recovery()
    dead.after(failure(D0, lost=True), [P0, D0])
    mismatch.after(failure(D0), [P0, D0])
    assert (dead.failed, mismatch.failed) == ({D0}, {P0, D0})


def test_two_deaths_at_work_are_one_request_too_many() -> None:
    suspect = recovery(max_attempts=9)
    suspect.after(failure(D0, lost=True, at_work=True), [P0, D0])
    suspect.after(failure(D0, lost=True, at_work=True), [P0, D0])  # the same one
    suspect.after(failure(P0, lost=True), [P0, D1])  # had not begun
    suspect.after(failure(P0, at_work=True), [P0, D1])  # lives
    with pytest.raises(BatonError, match="workers d0 and d1 died while they computed this request") as caught:
        suspect.after(failure(D1, lost=True, at_work=True), [P1, D1])
    assert caught.value.code is ErrorCode.INTERNAL


def test_a_draining_worker_is_free_once() -> None:
    moved = recovery(max_attempts=2)
    for worker in (D0, D1):
        assert moved.after(failure(worker, reason=Reason.DRAINING), [P0, worker]) == 0
    assert moved.failed == {D0, D1}
    moved.after(failure(D0, reason=Reason.DRAINING), [P0, D0])
    with pytest.raises(BatonError, match="gave up after 2 attempts"):
        moved.after(failure(D1, reason=Reason.DRAINING), [P0, D1])


def test_what_no_worker_has_failed_ends_the_request() -> None:
    none_left = BatonError(ErrorCode.UNAVAILABLE, "no decode worker is registered", 1.0)
    tried = recovery()
    with pytest.raises(BatonError) as caught:
        tried.after(none_left, [])
    assert caught.value is none_left
    tried.after(failure(D0), [P0, D0])
    with pytest.raises(BatonError, match=r"no decode worker is registered \(before: gone\)"):
        tried.after(none_left, [])


@pytest.mark.parametrize(
    ("token_ids", "reason"),
    [
        ([], None),
        ([5, 6], None),
        ([9], None),  # a stop token, but min_tokens holds it back
        ([5, 9], FinishReason.STOP),
        ([5, 6, 7], FinishReason.LENGTH),
    ],
)
def test_a_complete_output_is_known_without_a_worker(token_ids: list[int], reason: FinishReason | None) -> None:
    progress = Progress(sampling_pb2.SamplingParams(max_tokens=3, min_tokens=1, stop_token_ids=[9]))
    for position, token_id in enumerate(token_ids):
        progress.add(Tokens(position, [token_id], []))
    assert progress.end_reason() is reason
    assert progress.token_ids == tuple(token_ids)
