"""What the engine's bookkeeping costs: a step's schedule and commit, and hashing and looking up a long prompt.

Takes no model and no tensor: the plan is committed with made-up tokens. Each figure is the median over many steps of
which one in `--block-size` fills a block, as in a running system, in the fastest of some rounds; the look-up is the
median over repetitions.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baton.block_hash import root_hash
from baton.types import SamplingParams
from benchmarks.record import result, write
from engine.block_pool import BlockPool
from engine.config import SchedulerConfig
from engine.request import Request
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.costs import PreemptionCosts
from engine.scheduler.decode import DecodeScheduler
from engine.scheduler.preemption import Preemption
from engine.scheduler.swap_space import SwapSpace

MAX_LEN = 1 << 17


def make_request(name: str, prompt: list[int]) -> Request:
    """One that decodes until the benchmark ends."""
    sampling = SamplingParams(max_tokens=MAX_LEN, stop_token_ids=(2, 32_000))
    return Request((name, 1), len(prompt), sampling, prompt, 0, root_hash("benchmark"))


def schedule_commit_us(running: int, block_size: int, steps: int) -> float:
    """Of one step, while `running` sequences decode, with their block borders spread evenly over the steps."""
    blocks = RequestBlocks(BlockPool(running * (steps // block_size + 8)), block_size)
    config = SchedulerConfig(max_num_batched_tokens=running * block_size, max_num_seqs=running)
    preemption = Preemption(blocks, SwapSpace(0), PreemptionCosts(block_bytes=1))
    scheduler = DecodeScheduler(config, blocks, MAX_LEN, preemption)
    for index in range(running):
        scheduler.add(make_request(f"request-{index:04}-{'0' * 12}", [index] * (1 + index % block_size)))
    plan = scheduler.schedule()
    while any(seq.num_tokens > 1 for seq in plan.sequences) or len(plan.sequences) < running:
        scheduler.advance(plan)
        scheduler.commit(plan, [7 for seq in plan.sequences if seq.sample])
        plan = scheduler.schedule()
    scheduler.advance(plan)
    scheduler.commit(plan, [7] * running)
    times_us = []
    for step in range(steps):
        tokens = [7 + step % 100] * running
        start = time.perf_counter()
        plan = scheduler.schedule()
        middle = time.perf_counter()
        assert len(plan.sequences) == running
        resumed = time.perf_counter()
        scheduler.advance(plan)
        scheduler.commit(plan, tokens)
        times_us.append((time.perf_counter() - resumed + middle - start) * 1e6)
        blocks.pool.take_changes()
    return statistics.median(times_us)


def prefix_hash_lookup_ms(num_tokens: int, block_size: int, repeats: int) -> float:
    """From a prompt's token ids to its blocks, all of which are cached: what a request's start costs at most."""
    blocks = RequestBlocks(BlockPool(num_tokens // block_size + 8), block_size)
    prompt = [(17 * index) % 49_152 for index in range(num_tokens)]
    first = make_request("first", [*prompt, 0])
    blocks.grow(first, num_tokens)
    first.num_computed_tokens = num_tokens
    blocks.register(first)
    blocks.release(first)
    times_ms = []
    for index in range(repeats):
        request = make_request(str(index), [*prompt, 0])
        start = time.perf_counter()
        blocks.take_prefix(request)
        times_ms.append((time.perf_counter() - start) * 1e3)
        if request.num_computed_tokens != num_tokens:
            raise RuntimeError(f"got a hit of {request.num_computed_tokens} tokens, expected {num_tokens}")
        blocks.release(request)
    return statistics.median(times_ms)


def main() -> None:
    """Measures, prints and writes benchmarks/results/engine_scheduling.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=5, help="each measures all batch sizes; the fastest counts")
    args = parser.parse_args()
    lines = []
    sizes = (256, 512, 1024)
    rounds = [[schedule_commit_us(size, args.block_size, args.steps) for size in sizes] for _ in range(args.rounds)]
    for running, *values in zip(sizes, *rounds, strict=True):
        value = min(values)
        print(f"schedule_commit_us running={running}: {value:.0f} us, {value / running * 1e3:.0f} ns a sequence")
        params = {"running": running, "block_size": args.block_size}
        lines.append(result("schedule_commit_us", "none", params, value, "us"))
    value = prefix_hash_lookup_ms(32_768, args.block_size, 30)
    print(f"prefix_hash_lookup_ms tokens=32768: {value:.2f} ms")
    params = {"tokens": 32_768, "block_size": args.block_size}
    lines.append(result("prefix_hash_lookup_ms", "none", params, value, "ms"))
    print(f"wrote {write('engine_scheduling', lines)}")


if __name__ == "__main__":
    main()
