"""Admission's decisions on a clock of their own: bounds, shares, priorities, deadlines, what is learnt."""

import dataclasses
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.admission.base import AdmissionConfig, Client, Demand, Entry, Refused, State
from gateway.admission.client import client_at
from gateway.admission.core import AdmissionCore
from gateway.admission.fair_queue import FairQueue

ONE = AdmissionConfig(initial_per_worker=1.0, max_per_worker=1.0)
A, B = Client("a"), Client("b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A core, and what a caller does with it."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.core = AdmissionCore(dataclasses.replace(ONE, **options), self.clock)

    def ask(self, client: Client = A, in_s: float | None = None, **fields: Any) -> Entry:
        entry = self.core.arrive(client, fields.get("priority", 0))
        if entry.state is State.ARRIVED:
            deadline = None if in_s is None else self.clock.now + in_s
            self.core.offer(entry, Demand(**{"prompt_tokens": 10, "max_tokens": 10, "deadline": deadline, **fields}))
        return entry

    def serve(self, entry: Entry, seconds: float = 1.0, tokens: int = 10) -> list[Entry]:
        """First token after a tenth of the time."""
        self.clock.now += seconds / 10
        self.core.first_token(entry)
        self.clock.now += seconds * 9 / 10
        return self.core.end(entry, tokens)

    def learn(self, seconds: float = 1.0) -> None:
        for _ in range(20):
            self.serve(self.ask(), seconds)


def test_what_does_not_fit_waits_in_order_and_starts_when_there_is_room() -> None:
    desk = Desk()
    first, second, third = desk.ask(), desk.ask(), desk.ask()
    assert [entry.state for entry in (first, second, third)] == [State.RUNNING, State.WAITING, State.WAITING]
    assert desk.serve(first) == [second]
    assert desk.core.end(first) == []  # once
    assert (second.state, desk.core.running, desk.core.queued) == (State.RUNNING, 1, 1)


def test_priorities_order_a_clients_own_requests_only() -> None:
    desk = Desk()
    running = desk.ask(A)
    late, normal, early = (desk.ask(A, priority=priority) for priority in (5, 0, -5))
    other = desk.ask(B)
    order = []
    while decided := desk.serve(running):
        (running,) = decided
        order.append(running)
    assert [entry for entry in order if entry is not other] == [early, normal, late]
    assert other in order[:2]  # a's early ones cannot push b back


def test_bounds() -> None:
    desk = Desk(max_queued=10, max_queued_per_client=4)
    desk.ask()
    assert [desk.ask(A).state for _ in range(5)] == [State.WAITING] * 4 + [State.REFUSED]
    full = desk.ask(A)
    assert full.refusal is not None
    assert (full.refusal.reason, full.refusal.retry_after_s > 0) == (Refused.CLIENT_QUEUE_FULL, True)
    desk.ask(B)
    late = desk.ask(Client("c"), priority=1)  # 5 wait: half the places
    assert late.refusal is not None
    assert late.refusal.reason is Refused.QUEUE_FULL
    assert [desk.ask(Client(str(n))).state for n in range(5)] == [State.WAITING] * 4 + [State.REFUSED]
    assert desk.ask(Client("d"), priority=-1).state is State.WAITING


def test_waiting_prompts_are_bounded_in_tokens() -> None:
    desk = Desk(max_queued_tokens=100)
    desk.ask(prompt_tokens=500)  # it starts: nothing waits
    assert desk.ask(prompt_tokens=60).state is State.WAITING
    refused = desk.ask(prompt_tokens=60)
    assert refused.refusal is not None
    assert refused.refusal.reason is Refused.QUEUE_FULL


def test_requests_that_are_being_read_have_places() -> None:
    desk = Desk(max_queued=10, max_queued_per_client=2)
    entries = [desk.core.arrive(A) for _ in range(3)]
    assert [entry.state for entry in entries] == [State.ARRIVED, State.ARRIVED, State.REFUSED]
    desk.core.end(entries[0])
    assert desk.core.arrive(A).state is State.ARRIVED


def test_a_deadline_that_cannot_be_met_is_refused_at_once_and_says_why() -> None:
    desk = Desk()
    desk.learn(seconds=2.0)
    running = desk.ask()
    assert desk.ask(in_s=9.0).state is State.WAITING
    assert desk.ask(in_s=9.0).state is State.WAITING
    refused = desk.ask(in_s=5.0)
    assert refused.refusal is not None
    assert refused.refusal.reason is Refused.DEADLINE_TOO_SHORT
    assert 0.1 <= refused.refusal.retry_after_s < 10
    assert "its deadline is in 5.00 s" in refused.refusal.message
    desk.core.end(running)


def test_what_need_not_wait_always_starts() -> None:
    """Else a wrong estimate would never be corrected."""
    desk = Desk()
    desk.learn(seconds=100.0)
    assert desk.ask(in_s=0.5).state is State.RUNNING


def test_a_request_whose_time_is_over_while_it_waits_is_refused_and_others_go_on() -> None:
    desk = Desk()
    desk.learn()
    running, late, patient = desk.ask(), desk.ask(in_s=3.0), desk.ask()
    assert late.latest_start is not None
    desk.clock.now = late.latest_start + 0.1
    assert desk.core.expire(late) == []
    assert late.state is State.REFUSED
    assert desk.core.expire(late) == []
    assert desk.core.end(running) == [patient]


def test_a_late_request_is_refused_when_its_turn_comes() -> None:
    desk = Desk()
    desk.learn()
    running, late, patient = desk.ask(), desk.ask(in_s=3.0), desk.ask()
    desk.clock.now += 3.0
    assert desk.core.end(running, 10) == [late, patient]
    assert (late.state, patient.state) == (State.REFUSED, State.RUNNING)


def test_several_answers_take_several_places_and_too_many_begin_alone() -> None:
    desk = Desk(initial_per_worker=4.0, max_per_worker=4.0)
    assert desk.ask(num_answers=3).state is State.RUNNING
    many = desk.ask(num_answers=8)
    assert many.state is State.WAITING
    assert desk.ask().state is State.WAITING  # not past the one before
    assert desk.core.running == 3


def test_the_limit_follows_refusals_growth_and_workers() -> None:
    desk = Desk(initial_per_worker=8.0, max_per_worker=64.0)
    desk.core.set_workers(2)
    assert desk.core.limit == 16
    entries = [desk.ask() for _ in range(40)]
    desk.core.worker_refused()
    desk.core.worker_refused()  # of the same moment
    assert desk.core.limit == int(16 * 0.9)
    for entry in entries[:16]:
        desk.serve(entry, 0.01)
    grown = desk.core.limit
    assert 15 <= grown <= 16  # about one a round
    desk.core.set_workers(1)
    assert desk.core.limit == grown // 2


def test_unused_places_teach_nothing() -> None:
    desk = Desk(initial_per_worker=8.0, max_per_worker=64.0)
    desk.learn()
    assert desk.core.limit == 8


def test_late_first_tokens_lower_the_limit_but_slow_machines_do_not() -> None:
    def after(ttft_s: float) -> int:
        desk = Desk(initial_per_worker=20.0, max_per_worker=64.0, ttft_s=2.0)
        desk.learn(seconds=10.0)  # first tokens after 1 s
        entries = [desk.ask() for _ in range(20)]
        desk.clock.now += ttft_s
        desk.core.first_token(entries[0])
        return desk.core.limit

    assert (after(2.5), after(6.0)) == (20, 18)


def test_without_a_queue_nothing_is_remembered_of_anybody() -> None:
    queue = FairQueue(max_clients=3)
    for number in range(5):
        queue.put(Entry(Client(str(number)), 0, number))
    assert [queue.pop(1.0).client.name for _ in range(4)] == ["0", "1", "2", "3"]
    assert len(queue._flows) == 5  # those that wait are never forgotten
    queue.put(Entry(Client("new"), 0, 9))
    assert len(queue._flows) == 3
    queue.pop(1.0)
    queue.pop(1.0)
    assert queue._flows == {}


def test_shares_are_in_tokens_and_follow_weights() -> None:
    heavy, light = Client("heavy", weight=3.0), Client("light")
    desk = Desk()
    running = desk.ask(Client("other"))
    for _ in range(400):
        desk.ask(heavy, prompt_tokens=100)
        desk.ask(light, prompt_tokens=100)
    served: Counter[str] = Counter()
    for _ in range(400):
        (running,) = desk.serve(running)
        served[running.client.name] += 1
    assert 2.8 < served["heavy"] / served["light"] < 3.2


def test_a_client_is_an_address_without_its_port() -> None:
    assert client_at("ipv4:10.0.0.1:4711") == client_at("ipv4:10.0.0.1:4712") == client_at("10.0.0.1")
    assert client_at("ipv6:%5Bfe80::1%5D:4711") == client_at("fe80::1") == Client("fe80::1")
    assert client_at("unix:/tmp/socket") == Client("unix:/tmp/socket")


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(1.0, 500.0)), min_size=50, max_size=200), st.data())
@settings(max_examples=60, deadline=None)
def test_while_all_wait_shares_differ_by_two_requests_at_most(
    more: list[tuple[int, float]], data: st.DataObject
) -> None:
    """The bound of start-time fair queueing, for any costs and weights."""
    clients = [Client(str(number), data.draw(st.sampled_from([0.5, 1.0, 4.0]))) for number in range(3)]
    queue, costs, served = FairQueue(max_clients=8), {}, dict.fromkeys("012", 0.0)
    for sequence, (number, cost) in enumerate([*((number, 1.0) for number in range(3)), *more]):
        entry = Entry(clients[number], 0, sequence)
        costs[entry] = cost
        queue.put(entry)
    while all(queue.length(client) for client in clients):
        entry = queue.first()
        assert entry is not None
        assert queue.pop(costs[entry]) is entry
        served[entry.client.name] += costs[entry] / entry.client.weight
        assert max(served.values()) - min(served.values()) <= 2 * 500.0 / 0.5


CONFIG = AdmissionConfig(
    max_queued=12, max_queued_per_client=6, max_queued_tokens=400, initial_per_worker=3.0, max_per_worker=6.0
)
CLIENTS = [Client("a"), Client("b", 2.0), Client("c")]


class AdmissionMachine(RuleBasedStateMachine):
    """Any order of calls: bounded, at work while there is work, and every request is decided and ends once."""

    entries: Bundle[Entry] = Bundle("entries")
    arrivals: Bundle[Entry] = Bundle("arrivals")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.core = AdmissionCore(CONFIG, self.clock)
        self.open: set[Entry] = set()
        self.decided: Counter[Entry] = Counter()

    def note(self, entries: list[Entry]) -> None:
        for entry in entries:
            assert entry.state in (State.RUNNING, State.REFUSED)
            self.decided[entry] += 1

    @rule(target=arrivals, client=st.sampled_from(CLIENTS), priority=st.integers(-1, 1))
    def arrive(self, client: Client, priority: int) -> Entry:
        entry = self.core.arrive(client, priority)
        assert entry.state in (State.ARRIVED, State.REFUSED)
        self.open.add(entry)
        return entry

    @rule(
        target=entries,
        entry=consumes(arrivals),
        prompt=st.integers(1, 60),
        answers=st.integers(1, 4),
        in_s=st.none() | st.floats(0.0, 20.0),
    )
    def offer(self, entry: Entry, prompt: int, answers: int, in_s: float | None) -> Entry:
        if entry.state is State.ARRIVED:
            deadline = None if in_s is None else self.clock.now + in_s
            self.core.offer(entry, Demand(prompt, 20, answers, entry.priority, deadline))
            assert entry.state in (State.RUNNING, State.WAITING, State.REFUSED)
            self.decided[entry] += entry.state is not State.WAITING
        return entry

    @rule(entry=consumes(arrivals))
    def leave_before_the_offer(self, entry: Entry) -> None:
        self.end_it(entry, None)

    @rule(entry=entries)
    def first_token(self, entry: Entry) -> None:
        self.core.first_token(entry)

    @rule(entry=consumes(entries), tokens=st.none() | st.integers(1, 80))
    def end(self, entry: Entry, tokens: int | None) -> None:
        self.end_it(entry, tokens)

    def end_it(self, entry: Entry, tokens: int | None) -> None:
        before = entry.state
        self.note(self.core.end(entry, tokens))
        assert entry.state is State.ENDED
        assert self.core.end(entry, tokens) == []
        assert self.decided[entry] == (before in (State.RUNNING, State.REFUSED) and self.decided[entry] > 0)
        self.open.discard(entry)

    @rule(entry=entries)
    def expire(self, entry: Entry) -> None:
        if entry.state is State.WAITING and entry.latest_start is not None:
            self.clock.now = max(self.clock.now, entry.latest_start)
            self.note([*self.core.expire(entry), entry])

    @rule(seconds=st.floats(0.0, 5.0))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def worker_refuses(self) -> None:
        self.core.worker_refused()

    @rule(count=st.integers(1, 3))
    def set_workers(self, count: int) -> None:
        self.note(self.core.set_workers(count))

    @invariant()
    def books_agree(self) -> None:
        by_state = Counter(entry.state for entry in self.open)
        running = [entry for entry in self.open if entry.state is State.RUNNING]
        waiting = [entry for entry in self.open if entry.state is State.WAITING]
        assert self.core.running == sum(entry.slots for entry in running)
        assert self.core.queued == by_state[State.WAITING] == len(list(self.core._queue))
        assert self.core.arrived == by_state[State.ARRIVED] == sum(self.core._arrived.values())
        assert self.core.queued + self.core.arrived <= CONFIG.max_queued
        assert self.core._queued_tokens == sum(entry.demand.prompt_tokens for entry in waiting)
        assert self.core._queued_tokens <= CONFIG.max_queued_tokens
        assert all(count <= 1 for count in self.decided.values())
        for client in CLIENTS:
            held = sum(1 for e in self.open if e.client is client and e.state in (State.WAITING, State.ARRIVED))
            assert held <= CONFIG.max_queued_per_client

    @invariant()
    def works_while_there_is_work(self) -> None:
        first = self.core._queue.first()
        assert first is None or not self.core._fits(first)


AdmissionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestAdmissionMachine = AdmissionMachine.TestCase
