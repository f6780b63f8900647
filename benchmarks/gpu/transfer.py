"""KV transfer between two GPUs of one host through the NIXL connector, and what the digest of the same blocks costs.

Blocks of the llama8b shape (32 layers, 8 KV heads, head 128, bfloat16, 16 tokens: 2 MiB each), scattered over pools on
both sides. The receiver is a process of its own, as a decode worker is. Times are from post to the poll that sees the
end.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from baton.types import KvEndpoint
from baton_kernels.digest import kv_digest
from benchmarks.record import result, write
from kv_transfer.base import PoolRegion
from kv_transfer.registry import make_receiver, make_sender

SHAPE = (8, 32, 2, 16, 128)  # kv heads, layers, keys and values, tokens, head size
BLOCK_BYTES = 8 * 32 * 2 * 16 * 128 * 2


def make_pool(num_blocks: int, device: str) -> torch.Tensor:
    """[num_blocks, kv_heads, layers, 2, block_size, head_dim] of random bfloat16."""
    pool = torch.empty(num_blocks, *SHAPE, dtype=torch.bfloat16, device=device)
    for block in pool:
        block.normal_()
    return pool


def receive(num_blocks: int, device: str) -> None:
    """The receiver's process: its endpoint goes to stdout as hex; a line on stdin asks for a digest of these blocks."""
    pool = make_pool(num_blocks, device)
    receiver = make_receiver("nixl", PoolRegion(pool.data_ptr(), num_blocks, BLOCK_BYTES, device), "decode")
    torch.cuda.synchronize()
    print(receiver.endpoint().metadata.hex(), flush=True)
    for line in sys.stdin:
        blocks = [int(word) for word in line.split()]
        while not receiver.poll():
            time.sleep(0.001)
        torch.cuda.synchronize()
        print(kv_digest(pool, blocks, 0, len(blocks) * 16), flush=True)
    receiver.close()


def main() -> None:
    """Measures, checks every transfer's digest, and writes benchmarks/results/gpu_transfer.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--receive", nargs=2, metavar=("BLOCKS", "DEVICE"), help=argparse.SUPPRESS)
    parser.add_argument("--to", default="cuda:1", help="the receiver's device; cuda:0 where there is one GPU")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    if args.receive:
        receive(int(args.receive[0]), args.receive[1])
        return
    num_blocks = max(args.tokens) // 16 + 64
    command = [sys.executable, __file__, "--receive", str(num_blocks), args.to]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    pool = make_pool(num_blocks, "cuda:0")
    torch.cuda.synchronize()
    sender = make_sender("nixl", PoolRegion(pool.data_ptr(), num_blocks, BLOCK_BYTES, "cuda:0"), "prefill")
    sender.connect("decode/1", KvEndpoint("nixl", bytes.fromhex(child.stdout.readline().strip())))
    rng, lines = random.Random(0), []
    direction = "gpu to gpu" if args.to != "cuda:0" else "within one gpu"
    for tokens in args.tokens:
        seconds, post_seconds, digest_seconds = [], [], []
        for _ in range(args.repeats + 1):
            source, target = (rng.sample(range(num_blocks), tokens // 16) for _ in range(2))
            start = time.perf_counter()
            sender.post("decode/1", source, target, b"ready")
            posted = time.perf_counter()
            while not (done := sender.poll()):
                pass
            seconds.append(time.perf_counter() - start)
            post_seconds.append(posted - start)
            if done[0].error:
                raise RuntimeError(done[0].error)
            start = time.perf_counter()
            digest = kv_digest(pool, source, 0, tokens)
            digest_seconds.append(time.perf_counter() - start)
            print(*target, file=child.stdin, flush=True)
            if int(child.stdout.readline()) != digest:
                raise RuntimeError("the blocks did not arrive as they were sent")
        best = [statistics.median(series[1:]) for series in (seconds, post_seconds, digest_seconds)]
        gb = tokens // 16 * BLOCK_BYTES / 1e9
        print(
            f"{tokens} tokens: {gb / best[0]:.0f} GB/s, {best[0] * 1e3:.2f} ms of which post {best[1] * 1e3:.2f}; ",
            end="",
        )
        print(f"digest {best[2] * 1e3:.2f} ms, {best[2] / best[0]:.2f} of the transfer", flush=True)
        params, gpu = {"tokens": tokens, "direction": direction}, torch.cuda.get_device_name()
        lines.append(result("kv_transfer_gb_s", "llama8b", params, gb / best[0], "GB/s", gpu=gpu))
        lines.append(result("kv_digest_share", "llama8b", {"tokens": tokens}, best[2] / best[0], "ratio", gpu=gpu))
    child.stdin.close()
    child.wait(timeout=30)
    sender.close()
    print(f"wrote {write('gpu_transfer', lines)}")


if __name__ == "__main__":
    main()
