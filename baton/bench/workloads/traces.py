"""A recorded load, replayed: its arrivals and lengths, and its shared prefixes as real tokens."""

from collections.abc import Sequence

import msgspec

from baton.bench.workloads.base import Session, Turn, Workload
from baton.bench.workloads.tokens import TokenSource
from baton.bench.workloads.trace_files import BLOCK_TOKENS, TraceLine
from baton.errors import invalid

_BLOCK, _OWN = 5, 6  # first number of a name in `TokenSource`


class Scale(msgspec.Struct, frozen=True):
    """How a trace is changed for a smaller or faster system."""

    speed: float = 1.0  # arrivals come so many times as fast
    lengths: float = 1.0  # factor of all lengths, blocks of a shared prefix included
    longest: int | None = None  # requests of more tokens, answer included, are left out


class Trace(Workload):
    """The lines of a trace. Prompts with the same leading hash ids begin with the same tokens."""

    def __init__(self, source: TokenSource, lines: Sequence[TraceLine], scale: Scale) -> None:
        """Raises:
        BatonError: INVALID_ARGUMENT when no line is left.
        """
        self._source, self._scale = source, scale
        self._block_tokens = max(1, round(BLOCK_TOKENS * scale.lengths))
        scaled = [_scaled(line, scale) for line in lines]
        longest = scale.longest
        self._lines = [line for line in scaled if longest is None or line.input_tokens + line.output_tokens <= longest]
        self._left_out = len(scaled) - len(self._lines)
        if not self._lines:
            raise invalid(
                f"got a trace of {len(scaled)} requests, none of at most {longest} tokens with its answer; raise "
                "--longest-request or lower --length-scale"
            )

    @property
    def num_sessions(self) -> int | None:
        return len(self._lines)

    def session(self, number: int) -> Session:
        line = self._lines[number]
        tokens = self._source.tokens(0, _OWN, number)  # a simulator's source makes something else than lists
        for hash_id in line.hash_ids:
            tokens += self._source.tokens(self._block_tokens, _BLOCK, hash_id)
        tokens = tokens[: line.input_tokens]
        tokens += self._source.tokens(line.input_tokens - len(tokens), _OWN, number)
        return Session([Turn(tokens, line.output_tokens)])

    def session_arrival_s(self, number: int) -> float:
        return self._lines[number].arrival_s

    @property
    def notes(self) -> Sequence[str]:
        if not self._left_out:
            return ()
        total = self._left_out + len(self._lines)
        return [
            f"{self._left_out} of {total} requests of the trace are left out: more than {self._scale.longest} tokens, "
            "answer included"
        ]


def _scaled(line: TraceLine, scale: Scale) -> TraceLine:
    return msgspec.structs.replace(
        line,
        arrival_s=line.arrival_s / scale.speed,
        input_tokens=max(1, round(line.input_tokens * scale.lengths)),
        output_tokens=max(1, round(line.output_tokens * scale.lengths)),
    )
