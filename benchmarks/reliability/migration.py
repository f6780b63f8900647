"""The pause that a client sees when its running request is moved to another decode worker, beside its usual gaps.

One prefill and two decode workers, one request at a time. In the middle of its answer the decode worker is asked to be
rid of it. The pause is the largest gap between two tokens from then on until a few tokens after; the baseline is the
median gap of the same answers.
"""

import argparse
import itertools
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import grpc

from baton.config import StackOptions
from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2, worker_pb2, worker_pb2_grpc
from benchmarks.record import result, write

MODEL = "smollm2-135m"
MAX_TOKENS = 60
MOVE_AT = 20  # tokens
WINDOW = 15  # tokens behind it in which the pause is looked for


class Move(NamedTuple):
    """One answer's gaps between tokens, in ms."""

    pause_ms: float
    gaps_ms: list[float]  # the others


def measure(stack: LocalStack, prompt_tokens: int, number: int) -> Move:
    """Asks, moves, and checks that it was moved."""
    ids = [20 + (number * 131 + position * 7) % 9000 for position in range(prompt_tokens)]
    sampling = sampling_pb2.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    request = inference_pb2.GenerateRequest(tokens=inference_pb2.TokenPrompt(token_ids=ids), sampling=sampling)
    log = stack.run_folder / "gateway.log"
    moves = log.read_text().count(" instead of ")
    times: list[float] = []
    with grpc.insecure_channel(stack.gateway_address) as channel:
        for response in inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=300):
            times += [time.perf_counter()] * len(response.token_ids)
            if len(times) == MOVE_AT:
                threading.Thread(target=_move_once, args=(stack,)).start()
    if log.read_text().count(" instead of ") != moves + 1:
        raise SystemExit("the request was not moved; the gateway's log says why")
    gaps = [(after - before) * 1e3 for before, after in itertools.pairwise(times)]
    window = slice(MOVE_AT - 1, MOVE_AT + WINDOW)
    return Move(max(gaps[window]), [*gaps[2 : MOVE_AT - 1], *gaps[MOVE_AT + WINDOW :]])


def _move_once(stack: LocalStack) -> None:
    """Asks one decode worker after the other, until one has something to move; the next one may get it."""
    for name, address in stack.worker_addresses.items():
        if name.startswith("decode"):
            with grpc.insecure_channel(address) as channel:
                stub = worker_pb2_grpc.WorkerControlStub(channel)
                if stub.MigrateOut(worker_pb2.MigrateOutRequest(), timeout=10).requests_asked:
                    return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 1024, 2048], help="of the prompts")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with LocalStack(StackOptions(model=MODEL, port=0, decode=2, num_threads=1, max_model_len=4096)) as stack:
        measure(stack, 64, 0)  # the first one opens the connector
        for tokens in options.tokens:
            moves = [measure(stack, tokens, 1 + index) for index in range(options.repeat)]
            usual_ms = statistics.median(gap for move in moves for gap in move.gaps_ms)
            pause_ms = statistics.median(move.pause_ms for move in moves)
            baseline = {"name": "median gap between tokens", "value": round(usual_ms, 3)}
            lines.append(result("migration_pause_ms", MODEL, {"tokens": tokens}, pause_ms, "ms", baseline=baseline))
            print(f"{tokens} tokens: pause {pause_ms:.1f} ms, usual gap {usual_ms:.1f} ms")
    print(f"written to {write('migration', lines)}")


if __name__ == "__main__":
    main()
