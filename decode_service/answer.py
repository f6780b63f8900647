"""One Decode call: the engine core's events as responses and, at the end, as spans."""

import time
from collections.abc import AsyncIterator

from baton.convert import finish_to_pb, logprobs_to_pb, prompt_logprobs_to_pb, transfer_to_pb
from baton.errors import BatonError
from baton.rpc import worker_pb2
from baton.telemetry.tracing import SpanEvent
from baton.worker.admission import Admission
from engine.event_stream import EventStream, MoveWanted, StreamEvent
from engine.messages import Aborted, Admitted, Failed, Finished, Moved, PromptLogprobs, Timeline, Tokens
from engine.spans import AttemptSpans


class Answer:
    """Reads one stream. `is_local`: the prompt is prefilled here. `index`: which of its request's answers this is."""

    def __init__(
        self, stream: EventStream, spans: AttemptSpans, is_local: bool, admission: Admission, index: int = 0
    ) -> None:
        self._stream = stream
        self._admission = admission
        self._spans = spans
        self._is_local = is_local
        self._index = index
        self._opened_ns = time.time_ns()
        self._admitted: Admitted | None = None
        self._first_tokens_ns = 0
        self._num_output_tokens = 0
        self._cached_tokens = 0
        self._recorded = False

    async def responses(self) -> AsyncIterator[worker_pb2.DecodeEvent]:
        """Until the request has finished, or goes on elsewhere.

        Raises:
            BatonError: what the core says; CANCELLED when the attempt was released or aborted, DRAINING at this
                worker's end.
        """
        async for event in self._stream:
            if isinstance(event, Failed):
                self._spans.failed(event.code)
                self._record(event.timeline)
                raise BatonError(event.code, event.message, reason=event.reason)
            if isinstance(event, Aborted):
                raise self._admission.aborted(*self._stream.key)
            if isinstance(event, Finished):
                self._cached_tokens = event.cached_tokens
                self._record(event.timeline)
            if isinstance(event, Moved):
                self._record(event.timeline)
                self._spans.transfer(event.timeline, event.transfer)
            yield self._response(event)

    def call_ended(self) -> None:
        """The call is over, at its end or before: a caller that has seen enough (a stop string) cancels it."""
        now = time.time_ns()
        if self._is_local:
            timeline = Timeline(self._opened_ns, self._opened_ns, self._first_tokens_ns, now)
        else:
            timeline = Timeline(self._opened_ns, 0, self._first_tokens_ns, now)
        self._record(timeline)

    def _response(self, event: StreamEvent) -> worker_pb2.DecodeEvent:
        match event:
            case Admitted():
                self._admitted = event
                control_us = max(0, event.admitted_unix_ns - event.kv_ready_unix_ns) // 1000
                admitted = worker_pb2.Admitted(verify_us=event.verify_us, control_us=control_us)
                return worker_pb2.DecodeEvent(admitted=admitted)
            case PromptLogprobs():
                told = prompt_logprobs_to_pb(event.position, event.logprobs)
                return worker_pb2.DecodeEvent(prompt_logprobs=told)
            case Tokens():
                return worker_pb2.DecodeEvent(tokens=self._tokens(event))
            case Finished():
                finished = worker_pb2.DecodeFinished(
                    finish_reason=finish_to_pb(event.reason), cached_prompt_tokens=event.cached_tokens
                )
                return worker_pb2.DecodeEvent(finished=finished)
            case Moved():
                moved = worker_pb2.Moved(output_position=event.output_position, transfer=transfer_to_pb(event.transfer))
                return worker_pb2.DecodeEvent(moved=moved)
            case MoveWanted():
                return worker_pb2.DecodeEvent(move_wanted=worker_pb2.MoveWanted())
            case _:
                raise AssertionError(f"the engine core sent {type(event).__name__} to a Decode call")

    def _tokens(self, event: Tokens) -> worker_pb2.DecodeTokens:
        tokens = worker_pb2.DecodeTokens(
            output_position=event.output_position,
            token_ids=event.token_ids,
            logprobs=[logprobs_to_pb(logprobs) for logprobs in event.logprobs],
        )
        if not self._first_tokens_ns:
            self._first_tokens_ns = time.time_ns()
            self._cached_tokens = tokens.cached_prompt_tokens = event.cached_tokens
            if event.compute_us:
                tokens.times.queue_us, tokens.times.compute_us = event.queue_us, event.compute_us
        self._num_output_tokens = event.output_position + len(event.token_ids)
        return tokens

    def _record(self, timeline: Timeline) -> None:
        """Once. The spans follow one another: queue, then prefill.compute for a local prompt, then run."""
        if self._recorded:
            return
        self._recorded = True
        first_token_ns = timeline.first_token_unix_ns or self._first_tokens_ns
        if self._is_local:
            self._spans.queue("decode", timeline)
            self._spans.compute(timeline, self._cached_tokens)
            run_ns = first_token_ns
        elif self._admitted:
            self._record_hand_over(self._admitted)
            run_ns = self._admitted.admitted_unix_ns
        else:
            self._spans.record("decode.queue", timeline.queued_unix_ns, timeline.finished_unix_ns)
            return
        if run_ns:
            events = [SpanEvent("preempted", moment, {}) for moment in timeline.preempted_unix_ns]
            if first_token_ns:
                events.insert(0, SpanEvent("first token", first_token_ns, {}))
            attributes = {"baton.answer.index": self._index, "gen_ai.usage.output_tokens": self._num_output_tokens}
            self._spans.record("decode.run", run_ns, timeline.finished_unix_ns, attributes, events)

    def _record_hand_over(self, admitted: Admitted) -> None:
        self._spans.record(
            "decode.queue",
            admitted.reserved_unix_ns,
            admitted.admitted_unix_ns,
            {"baton.kv.verify_us": admitted.verify_us},
            [
                SpanEvent("kv ready sent", admitted.kv_ready_unix_ns, {}),
                SpanEvent("kv ready received", admitted.received_unix_ns, {}),
            ],
        )
