"""One process's share of a load: sends sessions at their times or one behind another, and notes a row a request."""

import asyncio
from collections.abc import Iterator, Set
from typing import Any

import msgspec

from baton.bench.load.options import LoadOptions
from baton.bench.load.plan import open_loop, session_numbers
from baton.bench.rows import RequestRow
from baton.bench.targets.base import Arrivals, Ask, Failure, Target, now_s
from baton.bench.workloads.base import Session, Workload
from baton.bench.workloads.tokens import LOWEST_TOKEN


class Counts(msgspec.Struct):
    """How far the load is."""

    sent: int = 0
    ended: int = 0
    failed: int = 0
    tokens: int = 0


class _Prepared(msgspec.Struct, frozen=True):
    ask: Ask
    payload: bytes


class Sender:
    """Use once. `rows` and `counts` can be read at any time."""

    def __init__(self, options: LoadOptions, workload: Workload, target: Target, process: int) -> None:
        self._options, self._workload, self._target, self._process = options, workload, target, process
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._start_s = 0.0
        self.rows: list[RequestRow] = []
        self.counts = Counts()

    def stop(self) -> None:
        """Ends the load at once: what is under way becomes rows of kind "interrupted"."""
        self._stop.set()

    async def run(self, start_s: float) -> list[RequestRow]:
        """The whole share; `start_s` by `now_s`, in the near future."""
        self._start_s = start_s
        await self._sleep_until(0.0)
        if self._options.arrivals == "closed":
            issuing: asyncio.Future[Any] = self._closed_loop()
        else:
            issuing = asyncio.create_task(self._open_loop())
        stopped = asyncio.create_task(self._stop.wait())
        await _wait_for_all({issuing}, stopped, self._options.duration_s)
        left_s = max(0.0, (self._options.duration_s or 0.0) - self._now())  # in which a session may still go on
        await _wait_for_all({issuing, *self._tasks}, stopped, left_s + self._options.drain_s)
        ending = [issuing, *self._tasks, stopped]
        for task in ending:
            task.cancel()
        for outcome in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        return self.rows

    @property
    def _closing(self) -> bool:
        """Whether nothing more is to be sent."""
        duration_s = self._options.duration_s
        return self._stop.is_set() or (duration_s is not None and self._now() > duration_s)

    async def _open_loop(self) -> None:
        for number, at_s in open_loop(self._options, self._workload, self._process):
            session = self._workload.session(number)
            first = self._prepare(number, 0, session.turns[0].new_tokens, session.turns[0].output_tokens)
            await self._sleep_until(at_s)
            if self._closing:
                return
            task = asyncio.create_task(self._run_session(number, session, first, at_s))
            self._tasks.add(task)
            task.add_done_callback(self._session_over)

    def _session_over(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._tasks.discard(task)  # one that broke stays, for `run` to raise what it broke with

    def _closed_loop(self) -> "asyncio.Future[list[None]]":
        numbers = session_numbers(self._options, self._workload, self._process)
        share = range(self._process, self._options.concurrency, self._options.num_processes)
        return asyncio.gather(*(self._one_behind_another(numbers) for _ in share))

    async def _one_behind_another(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            if self._closing:
                return
            session = self._workload.session(number)
            first = self._prepare(number, 0, session.turns[0].new_tokens, session.turns[0].output_tokens)
            await self._run_session(number, session, first, self._now())

    async def _run_session(self, number: int, session: Session, first: _Prepared, at_s: float) -> None:
        prepared, history = first, list[int]()
        for position, turn in enumerate(session.turns):
            if position:
                prepared = self._prepare(number, position, history + turn.new_tokens, turn.output_tokens)
                await self._sleep_until(at_s)
                if self._closing:
                    return
            row, answer = await self._send(prepared, number, position, at_s)
            if row.error is not None:
                return  # there is nothing to go on from
            history = prepared.ask.prompt + answer
            at_s = self._now() + session.think_s

    async def _send(self, prepared: _Prepared, number: int, turn: int, at_s: float) -> tuple[RequestRow, list[int]]:
        """Sends one request; the row, and the answer's token ids, made up where it came as text alone."""
        arrivals = Arrivals()
        row = RequestRow(number, turn, self._process, at_s, self._now(), 0.0, len(prepared.ask.prompt), 0)
        self.counts.sent += 1
        try:
            await self._target.stream(prepared.ask.request_id, prepared.payload, arrivals, self._options.timeout_s)
        except Failure as failure:
            row.error, row.message = failure.kind, str(failure)
            self.counts.failed += 1
        except asyncio.CancelledError:
            row.error = "interrupted" if self._stop.is_set() else "undrained"
            raise
        finally:
            row.end_s = self._now()
            sent_s = self._start_s + row.sent_s
            row.arrivals_ms = [round((moment - sent_s) * 1e3, 3) for moment in arrivals.moments_s]
            row.output_tokens = arrivals.output_tokens or arrivals.num_tokens
            row.cached_tokens = arrivals.cached_tokens
            self.rows.append(row)
            self.counts.ended += 1
            self.counts.tokens += row.output_tokens
        return row, arrivals.token_ids or [LOWEST_TOKEN] * row.output_tokens

    def _prepare(self, number: int, turn: int, prompt: list[int], output_tokens: int) -> _Prepared:
        request_id = f"bench-{self._options.seed}-{number}.{turn}"
        ask = Ask(request_id, prompt, output_tokens)
        return _Prepared(ask, self._target.prepare(ask, self._options.model))

    def _now(self) -> float:
        return now_s() - self._start_s

    async def _sleep_until(self, at_s: float) -> None:
        if (wait_s := at_s - self._now()) > 0:
            await asyncio.sleep(wait_s)


async def _wait_for_all(
    futures: Set["asyncio.Future[Any]"], stopped: "asyncio.Future[Any]", timeout_s: float | None
) -> None:
    """Until all have ended, however they did, or `stopped` has, or the time is over. Cancels none of them."""
    everything = asyncio.ensure_future(asyncio.wait(futures))
    await asyncio.wait({everything, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    everything.cancel()
