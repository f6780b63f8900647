"""Clients: sessions at their times or one behind another, as `baton bench serve` sends them."""

from collections.abc import Callable, Iterator

from baton.bench.load.options import LoadOptions, check_load
from baton.bench.load.plan import open_loop, session_numbers
from baton.bench.workloads.base import Session, Workload
from simulator.content import Content, answer_name, block_keys
from simulator.events import EventLoop
from simulator.gateway import Gateway
from simulator.records import Record


class Load:
    """All records are in `records`, in the order of their ends."""

    def __init__(self, loop: EventLoop, gateway: Gateway, options: LoadOptions, workload: Workload) -> None:
        check_load(options)
        self._loop, self._gateway, self._options, self._workload = loop, gateway, options, workload
        self.records: list[Record] = []
        self.on_end: Callable[[Record], None] = lambda record: None

    def start(self) -> None:
        """Asks for the first events."""
        if self._options.arrivals == "closed":
            numbers = session_numbers(self._options, self._workload, 0)
            for _ in range(self._options.concurrency):
                self._next_closed(numbers)
        else:
            self._next_open(open_loop(self._options, self._workload, 0))

    def _next_open(self, arrivals: Iterator[tuple[int, float]]) -> None:
        for number, at_s in arrivals:
            self._loop.at(max(at_s, self._loop.now_s), self._arrive, number, at_s, arrivals)
            return

    def _arrive(self, number: int, at_s: float, arrivals: Iterator[tuple[int, float]]) -> None:
        _Conversation(self, number, self._workload.session(number), lambda: None).ask(at_s)
        self._next_open(arrivals)

    def _next_closed(self, numbers: Iterator[int]) -> None:
        duration_s = self._options.duration_s
        if duration_s is not None and self._loop.now_s > duration_s:
            return
        for number in numbers:
            session = self._workload.session(number)
            _Conversation(self, number, session, lambda: self._next_closed(numbers)).ask(self._loop.now_s)
            return

    @property
    def loop(self) -> EventLoop:
        """The clock."""
        return self._loop

    @property
    def gateway(self) -> Gateway:
        """Where requests go."""
        return self._gateway


class _Conversation:
    """A session: each turn's prompt holds all before it, answers included."""

    def __init__(self, load: Load, number: int, session: Session, over: Callable[[], None]) -> None:
        self._load, self._number, self._session, self._over = load, number, session, over
        self._turn = 0
        self._history = Content()

    def ask(self, scheduled_s: float) -> None:
        load, turn = self._load, self._session.turns[self._turn]
        new: Content = turn.new_tokens  # type: ignore[assignment]
        prompt = self._history + new if self._turn else new
        answer = answer_name(self._number, self._turn)
        record = Record(self._number, self._turn, scheduled_s, load.loop.now_s, prompt.length)
        record.output_tokens = turn.output_tokens
        if self._turn + 1 < len(self._session.turns):
            self._history = prompt + Content(((answer, turn.output_tokens),), turn.output_tokens)
        load.gateway.submit(record, block_keys(prompt, answer, load.gateway.block_size), self._ended)

    def _ended(self, record: Record) -> None:
        load = self._load
        load.records.append(record)
        load.on_end(record)
        self._turn += 1
        if record.error is not None or self._turn == len(self._session.turns):
            self._over()
            return
        at_s = record.end_s + self._session.think_s
        load.loop.at(at_s, self.ask, at_s)
