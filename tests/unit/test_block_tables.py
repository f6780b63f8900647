"""Rows of block ids that are kept between steps are those that would be made anew."""

import random

from baton.types import SamplingParams
from engine.block_tables import BlockTables
from engine.request import Request


def test_rows_follow_growth_preemption_and_departure() -> None:
    rng, names = random.Random(0), iter(range(10_000))
    tables, requests = BlockTables(max_seqs=8, max_blocks=12), list[Request]()
    for _ in range(300):
        requests = [request for request in requests if rng.random() < 0.9]
        while len(requests) < 4 and rng.random() < 0.6:
            requests.append(Request((f"r{next(names)}", 1), 1, SamplingParams(), [7], 0, b""))
        for request in requests:
            if rng.random() < 0.2:
                request.preempted_unix_ns.append(1)
                request.block_ids = []
            grown = rng.randint(0 if request.block_ids else 1, 2)
            request.block_ids += [rng.randrange(1000) for _ in range(min(grown, 12 - len(request.block_ids)))]
        rng.shuffle(requests)
        for row, request in zip(tables.rows(requests), requests, strict=True):
            assert row[: len(request.block_ids)].tolist() == request.block_ids
