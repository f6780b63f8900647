"""Requests with grammars in both roles: each waits alone, fails alone, and draws what its grammar allows."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.errors import ErrorCode
from baton.structured import GrammarKind, StructuredOutput
from baton.types import FinishReason, Role, SamplingParams
from engine.context import EngineContext
from engine.grammar.compiler import CompilerLimits, GrammarCompiler
from engine.messages import Abort, Aborted, AddLocal, AddPrefill, Event, Failed, Finished, Granted, Refused, Reserve
from engine.roles.base import POLL_S, EngineRole
from engine.roles.grammar_gate import GrammarGate
from engine.roles.local import LocalRole
from tests.fakes.grammars import FakeBackend, spelled
from tests.fakes.role_pair import GREEDY, PROMPT, Pair, make_context, of, token_ids, turn

EOS = 2  # of the tiny model


def under(structured: StructuredOutput, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=20, stop_token_ids=(EOS,), structured=structured, **more)  # type: ignore[arg-type]


def gated(role: EngineRole, backend: FakeBackend) -> GrammarGate:
    role.context.grammars = GrammarCompiler(lambda: backend, CompilerLimits())
    return GrammarGate(role.context, role)


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    made = FakeBackend()
    yield made
    made.go.set()


class Local:
    def __init__(self, folder: Path, backend: FakeBackend, blocks: int = 40) -> None:
        self.events: list[Event] = []
        self.context: EngineContext = make_context(folder, Role.AGGREGATED, self.events, blocks)
        self.role = gated(LocalRole(self.context), backend)

    def add(self, name: str, sampling: SamplingParams) -> None:
        self.role.handle(AddLocal(name, 1, PROMPT, sampling))

    def turn_until(self, done: Callable[[], object]) -> None:
        turn_until([self.role], done)

    def ended(self, name: str, kind: type = Finished) -> list:
        return of(self.events, name, kind)


def turn_until(roles: list[EngineRole], done: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline_s
        computed = [turn(role) for role in roles]
        if not any(computed):
            time.sleep(POLL_S)


@pytest.fixture
def local(tiny_llama: Path, backend: FakeBackend) -> Local:
    return Local(tiny_llama, backend)


def test_draws_what_the_grammar_allows_and_ends_when_nothing_can_follow(local: Local) -> None:
    local.add("a", under(spelled(100, 7, 300)))
    local.add("free", GREEDY)
    local.turn_until(lambda: local.ended("a") and local.ended("free"))
    assert token_ids(local.events, "a") == [100, 7, 300]
    assert local.ended("a")[0].reason is FinishReason.STOP
    assert local.role.check_integrity() == []


def test_max_tokens_cuts_an_answer_short(local: Local) -> None:
    local.add("a", SamplingParams(max_tokens=2, structured=spelled(5, 6, 7)))
    local.turn_until(lambda: local.ended("a"))
    assert local.ended("a")[0].reason is FinishReason.LENGTH


def test_log_probabilities_stay_the_models_own(local: Local) -> None:
    local.add("a", under(spelled(100), num_logprobs=3))
    local.add("free", SamplingParams(temperature=0, max_tokens=1, num_logprobs=3))
    local.turn_until(lambda: local.ended("a") and local.ended("free"))
    (forced,), (free,) = (
        [event.logprobs[0] for event in local.events if getattr(event, "logprobs", ()) and event.request_id == name]
        for name in ("a", "free")
    )
    assert forced.token_id == 100
    assert [token for token, _ in forced.top] == [token for token, _ in free.top]
    assert [value for _, value in forced.top] == pytest.approx([value for _, value in free.top], abs=1e-4)
    assert forced.logprob < forced.top[0][1] < 0


def test_a_slow_compilation_holds_nobody_up(local: Local, backend: FakeBackend) -> None:
    local.add("slow", under(StructuredOutput(GrammarKind.EBNF, "slow 9")))
    local.add("free", GREEDY)
    local.add("quick", under(spelled(5, 6)))
    local.turn_until(lambda: local.ended("free") and local.ended("quick"))
    assert local.role.stats().waiting == 1
    assert token_ids(local.events, "slow") == []
    backend.go.set()
    local.turn_until(lambda: local.ended("slow"))
    assert token_ids(local.events, "slow") == [9]


@pytest.mark.parametrize(
    ("structured", "words"),
    [
        (StructuredOutput(GrammarKind.EBNF, "bad"), "the parser's message"),
        (StructuredOutput(GrammarKind.EBNF), "empty text"),
        (spelled(-1), "no token after 0 tokens"),
    ],
)
def test_a_bad_grammar_fails_alone_before_it_is_scheduled(
    local: Local, structured: StructuredOutput, words: str
) -> None:
    local.add("free", GREEDY)
    local.add("bad", under(structured))
    local.turn_until(lambda: local.ended("bad", Failed) and local.ended("free"))
    (failed,) = local.ended("bad", Failed)
    assert failed.code is ErrorCode.INVALID_ARGUMENT
    assert words in failed.message
    assert failed.timeline.started_unix_ns == 0
    assert len(token_ids(local.events, "free")) == 6


def test_a_dead_end_fails_alone_and_frees_its_blocks(local: Local) -> None:
    local.add("dead", under(spelled(5, 6, -1)))
    local.add("free", GREEDY)
    local.turn_until(lambda: local.ended("dead", Failed) and local.ended("free"))
    assert "no token after 2 tokens" in local.ended("dead", Failed)[0].message
    assert local.role.check_integrity() == []
    assert local.role.stats().blocks.active == 0


def test_a_grammar_that_takes_too_long_for_a_token_is_given_up(local: Local) -> None:
    local.add("heavy", under(StructuredOutput(GrammarKind.EBNF, "heavy 5 6 7")))
    local.turn_until(lambda: local.ended("heavy", Failed))
    assert "for one token" in local.ended("heavy", Failed)[0].message
    assert local.role.stats().blocks.active == 0


def test_an_abort_reaches_a_request_that_waits_for_its_grammar(local: Local) -> None:
    local.add("slow", under(StructuredOutput(GrammarKind.EBNF, "slow 9")))
    local.role.handle(Abort("slow", 1))
    turn(local.role)
    assert local.ended("slow", Aborted)[0].fenced
    assert local.role.stats().waiting == 0


def test_preemption_does_not_lose_the_place_in_the_grammar(tiny_llama: Path, backend: FakeBackend) -> None:
    local = Local(tiny_llama, backend, blocks=16)  # 47 tokens of prompt and 40 of output are 11
    answers = {name: [100 + 40 * index + n for n in range(40)] for index, name in enumerate("abc")}
    for name, answer in answers.items():
        local.role.handle(
            AddLocal(name, 1, (*PROMPT[:20], ord(name)), SamplingParams(max_tokens=99, structured=spelled(*answer)))
        )
    local.turn_until(lambda: all(local.ended(name) for name in answers))
    assert {name: token_ids(local.events, name) for name in answers} == answers
    assert local.role.stats().preemptions > 0


def test_decode_rebuilds_the_state_from_the_first_token(tiny_llama: Path, backend: FakeBackend) -> None:
    pair = Pair(tiny_llama)
    prefill, decode = gated(pair.prefill, backend), gated(pair.decode, backend)
    sampling = under(spelled(30, 31, 32))
    decode.handle(Reserve("a", 1, PROMPT, sampling))
    turn_until([decode], lambda: of(pair.decode_events, "a", Granted))
    (granted,) = of(pair.decode_events, "a", Granted)
    prefill.handle(AddPrefill("a", 1, PROMPT, sampling, granted.grant))
    turn_until([prefill, decode], lambda: of(pair.decode_events, "a", Finished))
    assert pair.tokens("a") == [30, 31, 32]
    pair.assert_at_rest()
    pair.close()


def test_a_bad_grammar_gets_no_grant(tiny_llama: Path, backend: FakeBackend) -> None:
    pair = Pair(tiny_llama)
    decode = gated(pair.decode, backend)
    decode.handle(Reserve("a", 1, PROMPT, under(StructuredOutput(GrammarKind.EBNF, "bad"))))
    turn_until([decode], lambda: of(pair.decode_events, "a", Refused))
    (refused,) = of(pair.decode_events, "a", Refused)
    assert (refused.code, refused.message) == (ErrorCode.INVALID_ARGUMENT, "structured.ebnf: the parser's message")
    pair.assert_at_rest()
    pair.close()


def test_a_dead_end_at_the_first_token_ends_the_hand_over(tiny_llama: Path, backend: FakeBackend) -> None:
    pair = Pair(tiny_llama)
    prefill = gated(pair.prefill, backend)
    granted = pair.reserve("a")
    prefill.handle(AddPrefill("a", 1, PROMPT, under(spelled(5, -1)), granted.grant))
    turn_until([prefill, pair.decode], lambda: of(pair.prefill_events, "a", Failed))
    assert "no token after 1 tokens" in of(pair.prefill_events, "a", Failed)[0].message
    assert token_ids(pair.prefill_events, "a") == []
    assert prefill.stats().blocks.active == 0
    pair.close()
