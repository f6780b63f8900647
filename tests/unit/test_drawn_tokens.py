"""The next step's input: drawn tokens by request, whatever order they come in, and known ones beside them."""

import torch

from baton.types import SamplingParams
from engine.drawn_tokens import DrawnTokens
from engine.request import Request


def make_requests(count: int) -> list[Request]:
    return [Request((str(index), 1), 1, SamplingParams(), [5, 100 + index], 0, b"") for index in range(count)]


def newest(drawn: DrawnTokens, requests: list[Request]) -> list[int]:
    out = torch.full((6,), -1)
    drawn.newest(requests, out[: len(requests)])
    assert out[len(requests) :].tolist() == [-1] * (6 - len(requests))
    return out[: len(requests)].tolist()


def test_unknown_tokens_come_from_the_step_before_and_known_ones_from_the_host() -> None:
    drawn, requests = DrawnTokens(4, torch.device("cpu")), make_requests(4)
    a, b, c, new = requests
    drawn.keep(torch.tensor([7, 8, 9]), [a, b, c])
    for request in (a, b, c):
        request.num_unknown_tokens = 1
    assert newest(drawn, [a, b, c]) == [7, 8, 9]
    assert newest(drawn, [c, new, a]) == [9, 103, 7]
    assert newest(drawn, [b]) == [8]
    drawn.nothing()
    assert newest(drawn, [new, c, b, a]) == [103, 9, 8, 7]


def test_unknown_tokens_are_put_into_a_mixed_batch() -> None:
    drawn, (a, b) = DrawnTokens(4, torch.device("cpu")), make_requests(2)
    drawn.keep(torch.tensor([7, 8]), [a, b])
    batch = torch.tensor([0, 1, 2, 0, 4])
    drawn.insert([(3, a), (0, b)], batch)
    assert batch.tolist() == [8, 1, 2, 7, 4]


def test_tokens_on_their_way_outlive_the_next_step() -> None:
    drawn, requests = DrawnTokens(4, torch.device("cpu")), make_requests(2)
    first = drawn.keep(torch.tensor([7, 8]), requests)
    second = drawn.keep(torch.tensor([9]), requests[:1])
    assert (first.token_ids.tolist(), second.token_ids.tolist()) == ([7, 8], [9])
