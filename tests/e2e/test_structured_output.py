"""Every answer under a JSON Schema ends and is valid: on two engines with preemption, and over the real stack."""

import json
import time
from pathlib import Path

import jsonschema
import pytest

from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, sampling_pb2
from baton.structured import GrammarKind, StructuredOutput
from baton.types import FinishReason, Role, SamplingParams, WorkerRef
from engine.config import CacheConfig, EngineConfig, LeaseConfig, SchedulerConfig
from engine.context import EngineContext
from engine.messages import AddPrefill, Event, Failed, Finished, Granted, Refused, Reserve
from engine.roles.base import POLL_S
from engine.roles.decode import DecodeRole
from engine.roles.grammar_gate import GrammarGate
from engine.roles.prefill import PrefillRole
from gateway.text import TextCodec
from kv_transfer.inproc import InprocNetwork, InprocReceiver, InprocSender
from tests.e2e.client import MODEL, ask_together
from tests.fakes.role_pair import of, region, token_ids, turn
from tests.fakes.schemas import Schema, make_schemas

NUM_SCHEMAS = 200
MAX_TOKENS = 1000  # more than any of these schemas lets an answer have, letter by letter
WITHIN_S = 800.0  # a minute on a quiet machine of two cores
BLOCK_BYTES = 2 * 30 * 3 * 16 * 64 * 4  # of SmolLM2-135M in float32
TOPICS = ("a book", "the weather", "a dog", "a train journey", "soup")


def prompt_text(index: int) -> str:
    return f"Describe {TOPICS[index % len(TOPICS)]} as JSON."


def problem_with(text: str, schema: Schema) -> str | None:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{error!s:.200} in {text!r} for {json.dumps(schema)}"
    return None


class Engines:
    """A prefill and a decode engine with the real model, joined in one process; decode has few blocks."""

    def __init__(self, folder: Path, decode_blocks: int) -> None:
        self.events: list[Event] = []
        network = InprocNetwork()
        prefill, self.decode_context = (
            self._context(folder, Role.PREFILL, 300),
            self._context(folder, Role.DECODE, decode_blocks),
        )
        self.prefill = GrammarGate(prefill, PrefillRole(prefill, InprocSender(region(prefill), "prefill", network)))
        receiver = InprocReceiver(region(self.decode_context), "decode", network)
        self.decode = GrammarGate(self.decode_context, DecodeRole(self.decode_context, receiver))

    def _context(self, folder: Path, role: Role, blocks: int) -> EngineContext:
        config = EngineConfig(
            model_path=str(folder),
            role=role,
            worker=WorkerRef(role.value, "life-1"),
            connector="inproc",
            max_model_len=1100,
            cache=CacheConfig(kv_cache_bytes=blocks * BLOCK_BYTES),
            scheduler=SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=64, growth_reserve_blocks=0),
            lease=LeaseConfig(lease_s=WITHIN_S),
        )
        return EngineContext(config, self.events.extend)

    def run(self, requests: dict[str, tuple[tuple[int, ...], SamplingParams]]) -> None:
        """Reserves as room allows, and turns both engines until every request has ended on decode or prefill."""
        waiting, open_names, deadline_s = dict(requests), set(), time.monotonic() + WITHIN_S
        while waiting or open_names:
            assert time.monotonic() < deadline_s, f"{len(waiting)} wait, {len(open_names)} run"
            for name in [*waiting][: 64 - len(open_names)]:
                open_names.add(name)
                self.decode.handle(Reserve(name, 1, *waiting.pop(name)))
            seen = len(self.events)
            if not any([turn(self.prefill), turn(self.decode)]):
                time.sleep(POLL_S)  # the compiler's threads need the interpreter
            for event in self.events[seen:]:
                if isinstance(event, Refused):
                    assert event.retry_after_s, event.message
                    waiting[event.request_id] = requests[event.request_id]
                if isinstance(event, Granted):
                    self.prefill.handle(AddPrefill(event.request_id, 1, *requests[event.request_id], event.grant))
                ended = isinstance(event, Finished) and event.reason is not None
                if ended or isinstance(event, Refused | Failed):
                    open_names.discard(event.request_id)


@pytest.mark.timeout(900)
def test_200_schemas_apart_with_preemption(smollm2: Path) -> None:
    codec = TextCodec(smollm2)
    schemas = make_schemas(NUM_SCHEMAS)
    requests = {}
    for index, schema in enumerate(schemas):
        prompt = tuple(codec.encode(prompt_text(index)))
        structured = StructuredOutput(GrammarKind.JSON_SCHEMA, json.dumps(schema))
        requests[str(index)] = (
            prompt,
            SamplingParams(seed=index, max_tokens=MAX_TOKENS, stop_token_ids=(2,), structured=structured),
        )
    engines = Engines(smollm2, decode_blocks=110)
    engines.run(requests)
    problems = []
    for index, schema in enumerate(schemas):
        (reason,) = [end.reason for end in of(engines.events, str(index), Finished) if end.reason]
        assert reason is FinishReason.STOP
        detokenizer = codec.detokenizer(requests[str(index)][0])
        text = "".join(map(detokenizer.push, token_ids(engines.events, str(index)))) + detokenizer.flush()
        problems.append(problem_with(text, schema))
    assert [problem for problem in problems if problem] == []
    assert engines.decode.stats().preemptions > 10
    assert engines.decode.check_integrity() == []


def test_schemas_over_the_stack(apart: LocalStack) -> None:
    schemas = make_schemas(24, seed=1)
    requests = [
        inference_pb2.GenerateRequest(
            model=MODEL,
            text=prompt_text(index),
            sampling=sampling_pb2.SamplingParams(
                temperature=1,
                seed=index,
                max_tokens=MAX_TOKENS,
                structured=sampling_pb2.StructuredOutput(json_schema=json.dumps(schema)),
            ),
        )
        for index, schema in enumerate(schemas)
    ]
    answers = ask_together(apart.gateway_address, requests, width=24)
    assert {answer.finish_reason for answer in answers} == {sampling_pb2.FINISH_REASON_STOP}
    problems = [problem_with(answer.text, schema) for answer, schema in zip(answers, schemas, strict=True)]
    assert [problem for problem in problems if problem] == []
