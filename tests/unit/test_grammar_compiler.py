"""Compiling beside the loop: shared, cached, bounded in time and memory, and never anybody else's problem."""

import time
from collections.abc import Iterator

import pytest

from baton.errors import BatonError, ErrorCode
from baton.structured import GrammarKind, StructuredOutput
from engine.grammar.base import CompiledGrammar
from engine.grammar.compiler import Compilation, CompilerLimits, GrammarCompiler
from tests.fakes.grammars import FakeBackend


def text(value: str) -> StructuredOutput:
    return StructuredOutput(GrammarKind.EBNF, value)


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    made = FakeBackend()
    yield made
    made.go.set()


def settle(compiler: GrammarCompiler, compilation: Compilation) -> CompiledGrammar | BatonError:
    deadline_s = time.monotonic() + 60
    while compilation.result is None:
        assert time.monotonic() < deadline_s
        compiler.poll()
        time.sleep(0.001)
    return compilation.result


def error_of(compiler: GrammarCompiler, value: str) -> BatonError:
    result = settle(compiler, compiler.start(text(value)))
    assert isinstance(result, BatonError)
    return result


def test_equal_grammars_are_compiled_once(backend: FakeBackend) -> None:
    compiler = GrammarCompiler(lambda: backend, CompilerLimits())
    first, second = compiler.start(text("slow 5")), compiler.start(text("slow 5"))
    assert first is second
    backend.go.set()
    compiled = settle(compiler, first)
    assert compiler.start(text("slow 5")).result is compiled
    assert backend.compiled == ["slow 5"]


def test_least_recently_used_grammars_are_dropped(backend: FakeBackend) -> None:
    compiler = GrammarCompiler(lambda: backend, CompilerLimits(cache_bytes=25))  # two of 10 bytes each
    for value in ("1", "2", "1", "3", "1", "2"):
        settle(compiler, compiler.start(text(value)))
    assert backend.compiled == ["1", "2", "3", "2"]


def test_errors_are_the_requests_own_and_not_kept(backend: FakeBackend) -> None:
    compiler = GrammarCompiler(lambda: backend, CompilerLimits())
    assert error_of(compiler, "bad").message == "structured.ebnf: the parser's message"
    assert error_of(compiler, "broken").code is ErrorCode.INTERNAL
    assert error_of(compiler, "bad").code is ErrorCode.INVALID_ARGUMENT
    assert backend.compiled == ["bad", "broken", "bad"]


def test_a_backend_that_cannot_be_made_is_tried_again(backend: FakeBackend) -> None:
    attempts = []

    def make() -> FakeBackend:
        attempts.append(1)
        if len(attempts) == 1:
            raise BatonError(ErrorCode.FAILED_PRECONDITION, "no tokenizer.json")
        return backend

    compiler = GrammarCompiler(make, CompilerLimits())
    assert error_of(compiler, "5").code is ErrorCode.FAILED_PRECONDITION
    assert isinstance(settle(compiler, compiler.start(text("5"))), CompiledGrammar)


def test_stuck_grammars_leave_room_for_others_up_to_a_limit(backend: FakeBackend) -> None:
    compiler = GrammarCompiler(lambda: backend, CompilerLimits(compile_s=0.05, num_threads=1, num_stuck=2))
    for value in ("slow 1", "slow 2"):
        assert "more than 0.05 s" in error_of(compiler, value).message
        if value == "slow 1":
            assert isinstance(settle(compiler, compiler.start(text("5"))), CompiledGrammar)
    refused = error_of(compiler, "6")
    assert (refused.code, refused.retry_after_s) == (ErrorCode.RESOURCE_EXHAUSTED, 1.0)
    backend.go.set()
    deadline_s = time.monotonic() + 60
    while isinstance(settle(compiler, compiler.start(text("6"))), BatonError):
        assert time.monotonic() < deadline_s
    assert backend.compiled == ["slow 1", "5", "slow 2", "6"]
