"""A grammar backend without a library: a grammar's text is the tokens that it allows, in order."""

import threading
import time

from torch import Tensor

from baton.errors import invalid
from baton.structured import GrammarKind, StructuredOutput
from engine.grammar.base import CompiledGrammar, GrammarBackend, GrammarMatcher
from engine.grammar.state import MAX_TOKEN_CPU_S

ENDS = (2,)  # of the tiny model


def spelled(*tokens: int) -> StructuredOutput:
    """A grammar whose only answer is these tokens; -1 stands for a place where nothing fits."""
    return StructuredOutput(GrammarKind.EBNF, " ".join(map(str, tokens)))


class FakeMatcher(GrammarMatcher):
    def __init__(self, tokens: tuple[int, ...], ends: tuple[int, ...], accept_cpu_s: float) -> None:
        self._left = list(tokens)
        self._ends = ends
        self._accept_cpu_s = accept_cpu_s

    def accept(self, token_id: int) -> bool:
        end_s = time.thread_time() + self._accept_cpu_s
        while time.thread_time() < end_s:
            pass
        if self._left[:1] != [token_id]:
            return False
        del self._left[0]
        return True

    @property
    def complete(self) -> bool:
        return not self._left

    def fill(self, row: Tensor) -> None:
        row.zero_()
        for token in self._left[:1] or self._ends:
            if token >= 0:
                row[token // 32] |= 1 << token % 32


class FakeGrammar(CompiledGrammar):
    def __init__(self, tokens: tuple[int, ...], accept_cpu_s: float = 0.0) -> None:
        self._tokens = tokens
        self._accept_cpu_s = accept_cpu_s

    @property
    def num_bytes(self) -> int:
        return 10

    def matcher(self) -> GrammarMatcher:
        return FakeMatcher(self._tokens, ENDS, self._accept_cpu_s)


class FakeBackend(GrammarBackend):
    """A word before the tokens makes trouble.

    "slow" is compiled when `go` is set, "bad" is refused, "broken" hits a bug, "heavy" takes too long for each token.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.compiled: list[str] = []

    def compile(self, structured: StructuredOutput) -> CompiledGrammar:
        self.compiled.append(structured.text)
        words = structured.text.split()
        kind = words.pop(0) if words[0].isalpha() else ""
        if kind == "slow":
            assert self.go.wait(60)
        if kind == "bad":
            raise invalid("structured.ebnf: the parser's message")
        if kind == "broken":
            raise KeyError("a bug")
        return FakeGrammar(tuple(map(int, words)), MAX_TOKEN_CPU_S + 0.05 if kind == "heavy" else 0.0)
