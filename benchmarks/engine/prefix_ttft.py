"""Time to first token of a request whose prefix is cached, as a share of the first one's with that prefix, on the CPU.

Both go through the aggregated engine, scheduler and cache included, one at a time. Each repetition has a prefix of its
own.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baton.fetch import resolve_model
from baton.types import Role, SamplingParams, WorkerRef
from benchmarks.record import result, write
from engine.config import CacheConfig, EngineConfig
from engine.context import EngineContext
from engine.messages import AddLocal, Event, Finished
from engine.roles.local import LocalRole

MODEL = "smollm2-135m"


class Engine:
    """One aggregated engine that answers with one token."""

    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        self._events: list[Event] = []
        config = EngineConfig(
            model_path=str(folder),
            role=Role.AGGREGATED,
            worker=WorkerRef("bench", "1"),
            dtype=dtype,
            num_threads=threads,
            max_model_len=4096,
            cache=CacheConfig(kv_cache_bytes=2 << 30),
        )
        self._role = LocalRole(EngineContext(config, self._events.extend))

    def ttft_s(self, name: str, prompt: list[int]) -> tuple[float, int]:
        """Seconds from the request to its first token, and prompt tokens found in the cache."""
        self._events.clear()
        start = time.perf_counter()
        self._role.handle(AddLocal(name, 1, tuple(prompt), SamplingParams(temperature=0, max_tokens=1)))
        while self._role.step():
            self._role.context.flush()
        seconds = time.perf_counter() - start
        (finished,) = [event for event in self._events if isinstance(event, Finished)]
        return seconds, finished.cached_tokens


def main() -> None:
    """Measures, prints and writes benchmarks/results/engine_prefix.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prefix", type=int, default=1500, help="tokens that both requests share")
    parser.add_argument("--own", type=int, default=32, help="tokens of each request's own")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    engine = Engine(resolve_model(MODEL), args.dtype, args.threads)
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        drawn: list[int] = torch.randint(100, 40_000, (count,), generator=generator).tolist()
        return drawn

    engine.ttft_s("warm-up", tokens(args.prefix))
    firsts, seconds = [], []
    for index in range(args.repeats):
        prefix = tokens(args.prefix)
        first_s, _ = engine.ttft_s(f"first-{index}", prefix + tokens(args.own))
        second_s, cached = engine.ttft_s(f"second-{index}", prefix + tokens(args.own))
        if cached < args.prefix - 16:
            raise RuntimeError(f"got {cached} cached tokens of a shared prefix of {args.prefix}")
        firsts.append(first_s)
        seconds.append(second_s)
    ratio = statistics.median(seconds) / statistics.median(firsts)
    print(
        f"first {statistics.median(firsts) * 1e3:.0f} ms, second {statistics.median(seconds) * 1e3:.0f} ms: {ratio:.3f}"
    )
    params = {"prefix": args.prefix, "own": args.own, "dtype": args.dtype, "threads": args.threads}
    first_ms, second_ms = (round(statistics.median(times) * 1e3, 1) for times in (firsts, seconds))
    line = result("prefix_hit_ttft_ratio", MODEL, params, ratio, "ratio", first_ms=first_ms, second_ms=second_ms)
    print(f"wrote {write('engine_prefix', [line])}")


if __name__ == "__main__":
    main()
