"""Workloads of made-up requests: random, behind shared prefixes, conversations, long documents."""

from baton.bench.workloads.base import Session, Turn, Workload
from baton.bench.workloads.lengths import Lengths
from baton.bench.workloads.tokens import TokenSource

# First number of a name in `TokenSource`: what the tokens are for.
_LENGTHS, _OWN, _PREFIX, _DOCUMENT = 1, 2, 3, 4
_DOCUMENTS_AT_ONCE = 4


class RandomPrompts(Workload):
    """Requests that share nothing."""

    def __init__(self, source: TokenSource, inputs: Lengths, outputs: Lengths) -> None:
        self._source, self._inputs, self._outputs = source, inputs, outputs

    @property
    def num_sessions(self) -> int | None:
        return None

    def session(self, number: int) -> Session:
        return Session([self._turn(number, 0)])

    def _turn(self, number: int, turn: int) -> Turn:
        lengths = self._source.generator(_LENGTHS, number, turn)
        num_tokens = self._inputs.draw(lengths)
        return Turn(self._source.tokens(num_tokens, _OWN, number, turn), self._outputs.draw(lengths))


class SharedPrefixes(RandomPrompts):
    """Each request's own tokens stand behind one of a few prefixes, drawn at random."""

    def __init__(
        self, source: TokenSource, inputs: Lengths, outputs: Lengths, num_prefixes: int, prefix_tokens: int
    ) -> None:
        super().__init__(source, inputs, outputs)
        self._prefixes = [source.tokens(prefix_tokens, _PREFIX, number) for number in range(num_prefixes)]

    def session(self, number: int) -> Session:
        turn = self._turn(number, 0)
        drawn = int(self._source.generator(_PREFIX, number, 0, 0).integers(len(self._prefixes)))
        return Session([Turn(self._prefixes[drawn] + turn.new_tokens, turn.output_tokens)])


class Conversations(RandomPrompts):
    """Sessions of several turns behind one system prompt that all share; each turn's prompt holds all before it."""

    def __init__(
        self,
        source: TokenSource,
        inputs: Lengths,
        outputs: Lengths,
        num_turns: int,
        think_s: float,
        system_tokens: int,
    ) -> None:
        super().__init__(source, inputs, outputs)
        self._num_turns, self._think_s = num_turns, think_s
        self._system = source.tokens(system_tokens, _PREFIX, 0)

    def session(self, number: int) -> Session:
        turns = [self._turn(number, turn) for turn in range(self._num_turns)]
        turns[0] = Turn(self._system + turns[0].new_tokens, turns[0].output_tokens)
        return Session(turns, self._think_s)


class LongDocuments(RandomPrompts):
    """Questions about long documents: each document is asked about several times, a few documents in turns."""

    def __init__(
        self, source: TokenSource, inputs: Lengths, outputs: Lengths, document_tokens: int, num_questions: int
    ) -> None:
        super().__init__(source, inputs, outputs)
        self._document_tokens, self._num_questions = document_tokens, num_questions

    def session(self, number: int) -> Session:
        group = number // (self._num_questions * _DOCUMENTS_AT_ONCE)
        document = group * _DOCUMENTS_AT_ONCE + number % _DOCUMENTS_AT_ONCE
        turn = self._turn(number, 0)
        tokens = self._source.tokens(self._document_tokens, _DOCUMENT, document)
        return Session([Turn(tokens + turn.new_tokens, turn.output_tokens)])
