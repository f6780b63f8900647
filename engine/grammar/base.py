"""The grammar seam: a backend compiles what a client wrote; a matcher says which tokens may come next."""

from abc import ABC, abstractmethod

from torch import Tensor

from baton.structured import StructuredOutput


class GrammarMatcher(ABC):
    """Where one answer stands in its grammar. Used by the engine core's thread alone."""

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Advances by one token that is no end-of-sequence token; False, and no change, when the grammar forbids it."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the answer could end here."""

    @abstractmethod
    def fill(self, row: Tensor) -> None:
        """Writes which tokens may come next into `row` [ceil(vocab / 32)] int32 on the CPU.

        Bit `token % 32` of word `token // 32` says that the token is allowed; end-of-sequence tokens are when
        the answer is complete. Bits beyond the vocabulary mean nothing.
        """


class CompiledGrammar(ABC):
    """A grammar ready for use; immutable, shared by all requests that bring the same one."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """What it takes in memory, for the cache."""

    @abstractmethod
    def matcher(self) -> GrammarMatcher:
        """A new one, at the start of an answer."""


class GrammarBackend(ABC):
    """Compiles for one vocabulary. The constructor raises BatonError when the model's vocabulary cannot be served."""

    @abstractmethod
    def compile(self, structured: StructuredOutput) -> CompiledGrammar:
        """May take long; called from several threads at once. `structured` has passed `problem_with_structured`.

        Raises:
            BatonError: INVALID_ARGUMENT with the parser's message; also for what the backend would not enforce.
        """
