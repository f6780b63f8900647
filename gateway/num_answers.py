"""How many answers a request gets, and how the sampling parameters of each differ."""

from typing import NamedTuple

import msgspec

from baton.errors import invalid
from baton.rpc import sampling_pb2
from baton.types import SamplingParams

MAX_ANSWERS = 16
_MASK64 = 2**64 - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


class NumAnswers(NamedTuple):
    """`best_of` answers are made, and the `n` best of them are given."""

    n: int
    best_of: int


ONE_ANSWER = NumAnswers(1, 1)


def num_answers(pb: sampling_pb2.SamplingParams) -> NumAnswers:
    """What a client asks for.

    Raises:
        BatonError: INVALID_ARGUMENT for too many or too few, and for several equal ones.
    """
    n = pb.n if pb.HasField("n") else 1
    best_of = pb.best_of if pb.HasField("best_of") else n
    if not 1 <= n <= MAX_ANSWERS:
        raise invalid(f"n: got {n}, expected 1 to {MAX_ANSWERS}; send more requests for more answers")
    if not n <= best_of <= MAX_ANSWERS:
        raise invalid(f"best_of: got {best_of}, expected {n} (n) to {MAX_ANSWERS}; change either or leave best_of out")
    if best_of == 1:
        return ONE_ANSWER
    field = "n" if n > 1 else "best_of"
    if pb.HasField("temperature") and pb.temperature == 0:
        raise invalid(
            f"{field}: got {max(n, best_of)}, expected 1 with temperature 0: greedy answers are all the same; raise "
            "temperature, or ask for one"
        )
    if pb.HasField("max_tokens") and pb.max_tokens == 0:
        raise invalid(f"{field}: got {max(n, best_of)}, expected 1 with max_tokens 0: there is no answer; ask for one")
    return NumAnswers(n, best_of)


def sampling_of(sampling: SamplingParams, index: int, ranked: bool) -> SamplingParams:
    """The parameters of answer `index`.

    Args:
        sampling: The request's, which are those of answer 0 as well.
        ranked: Whether its log-probability is to be known, wanted by the client or not.
    """
    if ranked and sampling.num_logprobs is None:
        sampling = msgspec.structs.replace(sampling, num_logprobs=0)
    if index:  # the prompt is told of once
        seed = answer_seed(sampling.seed, index)
        sampling = msgspec.structs.replace(sampling, seed=seed, num_prompt_logprobs=None)
    return sampling


def answer_seed(seed: int, index: int) -> int:
    """The seed of answer `index`: the request's own for 0, else SplitMix64's output number `index`, halved to 63 bits.

    A function of both numbers alone, so that an answer can be asked for again by itself. Steele, Lea, Flood: "Fast
    splittable pseudorandom number generators", OOPSLA 2014.
    """
    if index == 0:
        return seed
    state = (seed + index * _GOLDEN_GAMMA) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return (state ^ (state >> 31)) >> 1
