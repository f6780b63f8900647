"""Several answers to one request: their seeds, what each is sampled with, and which of them a client gets."""

from baton.rpc import inference_pb2, sampling_pb2
from baton.types import SamplingParams
from gateway.num_answers import answer_seed, sampling_of
from gateway.selection import BestOf

Response = inference_pb2.GenerateResponse


def response(token_id: int, logprob: float, end: bool = False) -> Response:
    entry = sampling_pb2.TokenLogprobs(sampled=sampling_pb2.Logprob(token_id=token_id, logprob=logprob))
    reason = sampling_pb2.FINISH_REASON_LENGTH if end else sampling_pb2.FINISH_REASON_UNSPECIFIED
    return Response(token_ids=[token_id], logprobs=[entry], finish_reason=reason)


def test_seeds_are_splitmix64s_outputs() -> None:
    """The first outputs for seed 0 as Java's SplittableRandom and Vigna's splitmix64.c give them."""
    assert answer_seed(7, 0) == 7
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [answer_seed(0, index) for index in (1, 2, 3)] == [output >> 1 for output in outputs]
    seeds = {answer_seed(seed, index) for seed in (0, 1, 2**63 - 1) for index in range(16)}
    assert len(seeds) == 48
    assert max(seeds) < 2**63


def test_the_prompt_is_told_of_once_and_only_what_is_ranked_has_logprobs() -> None:
    sampling = SamplingParams(seed=5, num_prompt_logprobs=2)
    assert sampling_of(sampling, 0, ranked=False) == sampling
    second = sampling_of(sampling, 1, ranked=True)
    assert (second.num_prompt_logprobs, second.num_logprobs) == (None, 0)
    assert sampling_of(SamplingParams(num_logprobs=3), 1, ranked=True).num_logprobs == 3


def test_the_best_answers_come_first_and_at_the_end() -> None:
    best = BestOf(2, 3, with_logprobs=False)
    assert best.add(0, response(10, -3.0)) == []
    assert best.add(0, response(11, -1.0, end=True)) == []
    assert best.add(2, response(30, -1.5, end=True)) == []
    assert best.add(1, response(20, -0.5)) == []
    chosen = best.add(1, response(21, -0.25, end=True))
    assert [(one.index, list(one.token_ids)) for one in chosen] == [(0, [20]), (0, [21]), (1, [30])]
    assert not any(one.logprobs for one in chosen)


def test_log_probabilities_stay_where_they_were_asked_for() -> None:
    best = BestOf(1, 2, with_logprobs=True)
    best.add(0, response(10, -3.0, end=True))
    (chosen,) = best.add(1, response(20, -1.0, end=True))
    assert chosen.logprobs[0].sampled.token_id == 20
