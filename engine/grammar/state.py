"""Where one request's answer stands in its grammar: a function of its output tokens and nothing else."""

import time
from collections.abc import Sequence

import torch

from engine.grammar.base import CompiledGrammar

# CPU time that a grammar may take for one token, since all requests of the step wait for it. Usual ones take 20 us;
# "((((a+)+)+)+)+b" takes more with each token, 0.26 s after 200.
MAX_TOKEN_CPU_S = 0.25


class GrammarState:
    """Follows the output token by token. After each, `allowed` has the next position's tokens.

    Whoever gets a request in the middle rebuilds the state with `catch_up`. `over`: the answer is complete and nothing
    can follow. `problem`: why the request cannot go on; whoever sees it fails the request.
    """

    def __init__(
        self, compiled: CompiledGrammar, vocab_size: int, ends: Sequence[int], held_back: Sequence[int]
    ) -> None:
        """`ends`: the model's end-of-sequence tokens that may end this answer; `held_back`: those that may not."""
        self.allowed = torch.zeros(-(-vocab_size // 32), dtype=torch.int32)  # as `GrammarMatcher.fill` writes it
        self.over = False
        self.problem: str | None = None
        self._matcher = compiled.matcher()
        self._ends = frozenset(ends)
        self._drawable = _all_bits_but(held_back, vocab_size)
        self._text = _all_bits_but([*ends, *held_back], vocab_size)
        self._num_accepted = 0
        self._look_ahead()

    def catch_up(self, output: Sequence[int]) -> None:
        """Replays what it has not seen of all output tokens so far."""
        for token in output[self._num_accepted :]:
            self.accept(token)

    def accept(self, token: int) -> None:
        """Takes the next output token."""
        self._num_accepted += 1
        if self.over or self.problem:
            return
        start_s = time.thread_time()
        if not self._allows(token):
            self.problem = f"the grammar does not allow token {token}, which was drawn at position {self._position}; "
            self.problem += "drop parameters that rule out what it allows"
        elif token in self._ends:
            self.over = True
        elif not self._matcher.accept(token):
            self.problem = f"the grammar's compiler contradicts itself at output position {self._position}; change it"
        else:
            self._look_ahead()
        cpu_s = time.thread_time() - start_s
        if cpu_s > MAX_TOKEN_CPU_S and not self.over:
            self.problem = f"the grammar took {cpu_s:.2f} s for one token, expected at most {MAX_TOKEN_CPU_S} s; "
            self.problem += "make it less ambiguous (nested repetitions are)"

    @property
    def _position(self) -> int:
        return self._num_accepted - 1

    def _allows(self, token: int) -> bool:
        return bool(int(self.allowed[token // 32]) >> token % 32 & 1)

    def _look_ahead(self) -> None:
        self._matcher.fill(self.allowed)
        self.allowed &= self._drawable
        if bool((self.allowed & self._text).any()):
            return
        if self._matcher.complete:
            self.over = True
        else:
            self.problem = f"the grammar allows no token after {self._num_accepted} tokens; correct it"


def _all_bits_but(tokens: Sequence[int], vocab_size: int) -> torch.Tensor:
    """[ceil(vocab / 32)] int32 with the bits of all other tokens of the vocabulary set."""
    words = [(1 << min(32, vocab_size - start)) - 1 for start in range(0, vocab_size, 32)]
    for token in tokens:
        words[token // 32] &= ~(1 << token % 32)
    return torch.tensor([word - (1 << 32) if word >> 31 else word for word in words], dtype=torch.int32)
