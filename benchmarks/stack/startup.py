"""From `baton up`'s start to a stack that serves, and to the first token of a first request, with the small model.

The stack is one of `baton up`: Redis, gateway and workers as processes of their own. Times are medians over starts; the
baseline of the first token is the same request asked again.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baton.cli.client import connect, first_model, stream_answer
from baton.config import StackOptions, resolve
from baton.local import LocalStack
from baton.rpc import inference_pb2, sampling_pb2
from benchmarks.record import result, write

_TIMEOUT_S = 120.0


def first_token_s(address: str, prompt: list[int]) -> float:
    """Of one request of one token."""
    with connect(address) as channel:
        request = inference_pb2.GenerateRequest(
            model=first_model(channel, address),
            tokens=inference_pb2.TokenPrompt(token_ids=prompt),
            sampling=sampling_pb2.SamplingParams(temperature=0, max_tokens=1),
        )
        return stream_answer(channel, address, request, _TIMEOUT_S, lambda text: None).token_times_s[0]


def measure(options: StackOptions) -> tuple[float, float, float]:
    """Seconds to serving, then to the first token of the first request, and of one like it behind that."""
    start = time.perf_counter()
    with LocalStack(options) as stack:
        ready_s = time.perf_counter() - start
        first_s = first_token_s(stack.gateway_address, list(range(1000, 1064)))
        return ready_s, first_s, first_token_s(stack.gateway_address, list(range(2000, 2064)))


def main() -> None:
    """Measures, prints and writes benchmarks/results/stack_startup.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    args = parser.parse_args()
    lines = []
    for mode in ("apart", "aggregated"):
        options, _ = resolve({"port": 0, "aggregated": mode == "aggregated"})
        runs = [measure(options) for _ in range(args.starts)]
        ready_s, first_s, next_s = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"{mode}: serves after {ready_s:.2f} s, first token {first_s * 1e3:.0f} ms, then {next_s * 1e3:.0f}")
        params = {"mode": mode, "prefill": 0 if options.aggregated else options.prefill, "decode": options.decode}
        baseline = {"name": "the second request", "value": round(next_s * 1e3, 3)}
        lines.append(result("start_s", options.model, params, ready_s, "s"))
        lines.append(result("first_request_ttft_ms", options.model, params, first_s * 1e3, "ms", baseline=baseline))
    print(f"wrote {write('stack_startup', lines)}")


if __name__ == "__main__":
    main()
