"""What prompts consist of, without their tokens: names of runs of tokens, and keys in place of block hashes."""

from collections.abc import Sequence
from typing import NamedTuple, overload

from baton.bench.workloads.tokens import TokenSource

_ROOT = 0x5EED


class Content:
    """Tokens as named runs. Runs of one name hold the same tokens, as far as the shorter one goes."""

    __slots__ = ("length", "runs")

    def __init__(self, runs: tuple[tuple[int, int], ...] = (), length: int | None = None) -> None:
        """`runs`: name and number of tokens, above 0, of each."""
        self.runs = runs
        self.length = sum(count for _, count in runs) if length is None else length

    def __len__(self) -> int:
        return self.length

    def __add__(self, other: "Content") -> "Content":
        return Content(self.runs + other.runs, self.length + other.length)

    @overload
    def __getitem__(self, part: int) -> int: ...
    @overload
    def __getitem__(self, part: slice) -> "Content": ...
    def __getitem__(self, part: "int | slice") -> "int | Content":
        """The first tokens: only `[:n]` is made."""
        if not isinstance(part, slice) or part.start or part.step or part.stop is None or part.stop < 0:
            raise TypeError(f"got [{part}], expected [:n]: content has no single tokens")
        left, runs = part.stop, []
        for name, count in self.runs:
            if left <= 0:
                break
            runs.append((name, min(count, left)))
            left -= count
        return Content(tuple(runs))


class ContentSource(TokenSource):
    """Gives names where a `TokenSource` makes tokens, so that workloads make prompts of `Content`."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        super().__init__(seed, vocab_size)
        self.copy = 0  # of a load that is there several times: each has tokens of its own

    def tokens(self, count: int, *name: int) -> list[int]:
        """Typed as the tokens that it stands for."""
        return Content(((hash((self._seed, self.copy, *name)), count),), count) if count else Content()  # type: ignore[return-value]


class BlockKeys(NamedTuple):
    """Stand for chained hashes: equal keys, equal tokens up to and including that block."""

    prompt: list[int]  # of the full blocks
    answer_chain: int  # a block that ends in the answer has this XOR its index


def block_keys(content: Content, answer_name: int, block_size: int) -> BlockKeys:
    """Keys are 64-bit hashes of the names up to a block's end; those of integers are the same in every process."""
    keys: list[int] = []
    parent, position, first = _ROOT, 0, 0
    for name, count in content.runs:
        inside = hash((parent, name))
        position += count
        end = position // block_size
        if end > first:
            keys += [inside ^ index for index in range(first, end)]
            first = end
        parent = hash((inside, count))
    return BlockKeys(keys, hash((parent, answer_name)))


def answer_name(session: int, turn: int) -> int:
    """The name of an answer's run."""
    return hash((7, session, turn))


def conversation(parts: Sequence[Content]) -> Content:
    """All of them one behind another."""
    return Content(tuple(run for part in parts for run in part.runs), sum(part.length for part in parts))
