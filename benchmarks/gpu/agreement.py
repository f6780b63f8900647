"""Greedy tokens in bfloat16 on a GPU beside transformers' in bfloat16, on the small model.

Both round differently, so they part where two tokens are about equally good. Where an answer parts, transformers' own
logits of the two tokens, in float32 and in bfloat16, say how far apart they are; within `--tie` bfloat16 steps in one
of them is a tie, and what follows is not compared. The share is that of tokens which are the same, among those before
the first tie of each answer.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from baton.types import Role, SamplingParams, WorkerRef
from benchmarks.record import result, write
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.context import EngineContext
from engine.messages import AddLocal, Event, Tokens
from engine.roles.local import LocalRole

SUBJECTS = ("the sea", "a clock", "winter", "bread", "a bridge", "the moon", "a violin", "the city")
OPENINGS = (
    "Once upon a time there was a child who wanted to know everything about",
    "The most important thing that a beginner should understand about",
    "In this chapter we look at the long and surprising history of",
    "Dear friend, yesterday I had a strange dream which began with",
    "Scientists have recently published a study that explains how people see",
    "Write a list of ten questions that a good teacher would ask about",
    "The recipe is simple, my grandmother said, and then she told me of",
    "def describe(thing): # returns a short text in plain English about",
)
PROMPT_TOKENS = 11


def baton_tokens(model: str, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Answers of an aggregated engine core that runs all prompts at once."""
    answers: list[list[int]] = [[] for _ in prompts]

    def receive(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                answers[int(event.request_id)] += event.token_ids

    config = EngineConfig(
        model,
        Role.AGGREGATED,
        WorkerRef("bench", "1"),
        device="cuda",
        dtype="bfloat16",
        max_model_len=1024,
        cache=CacheConfig(gpu_memory_utilization=0.2, swap_space_bytes=0),
        scheduler=SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64),
    )
    role = LocalRole(EngineContext(config, receive))
    for index, prompt in enumerate(prompts):
        role.handle(AddLocal(str(index), 1, tuple(prompt), SamplingParams(temperature=0, max_tokens=num_tokens)))
    while role.step():
        role.context.flush()
    role.context.flush()
    role.close()
    return answers


@torch.inference_mode()
def transformers_tokens(model: PreTrainedModel, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Answers of transformers, all prompts in one batch: they are equally long, so nothing is padded."""
    ids = torch.tensor(prompts, device="cuda")
    cache, answers, step = None, [], ids
    for _ in range(num_tokens):
        out = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache, step = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
        answers.append(step)
    answer: Tensor = torch.cat(answers, 1)
    return answer.tolist()


@torch.inference_mode()
def gap(model: PreTrainedModel, tokens: list[int], one: int, other: int) -> float:
    """How far apart the logits of two tokens behind `tokens` are, in steps of bfloat16, which keeps 8 bits."""
    logits = model(input_ids=torch.tensor([tokens], device="cuda")).logits[0, -1].float()
    step = 2.0 ** (math.floor(math.log2(float(logits[one].abs()))) - 7)
    return float((logits[one] - logits[other]).abs()) / step


def main() -> None:
    """Prints where answers part, and writes benchmarks/results/gpu_agreement.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of the small model, as `baton fetch` prints it")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--tie", type=float, default=2.0, help="steps of bfloat16 at the logits' size")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    texts = [f"{opening} {subject}" for opening in OPENINGS for subject in SUBJECTS]
    prompts = [tokenizer(text).input_ids[-PROMPT_TOKENS:] for text in texts]
    ours = baton_tokens(args.model, prompts, args.tokens)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).cuda().eval()
    theirs = transformers_tokens(model, prompts, args.tokens)
    reference = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).cuda().eval()
    same = compared = whole = 0
    gaps: list[float] = []
    for prompt, our, their in zip(prompts, ours, theirs, strict=True):
        first = next((at for at, pair in enumerate(zip(our, their, strict=False)) if pair[0] != pair[1]), args.tokens)
        whole += first == args.tokens
        same += first
        if first == args.tokens:
            compared += first
            continue
        wide, narrow = (gap(one, prompt + our[:first], our[first], their[first]) for one in (reference, model))
        gaps.append(min(wide, narrow))
        tie = gaps[-1] <= args.tie
        compared += first if tie else args.tokens
        apart = f"{wide:.2f} steps apart in float32, {narrow:.2f} in bfloat16{'' if tie else ': no tie'}"
        print(f"parts at token {first}: {our[first]} and {their[first]}, {apart}")
    share = same / compared
    params = {
        "prompts": len(prompts),
        "tokens": args.tokens,
        "tie": args.tie,
        "whole": whole,
        "compared": compared,
        "largest_gap": round(max(gaps, default=0.0), 3),
    }
    print(f"{same} of {compared} tokens are the same; {whole} of {len(prompts)} answers to the end; {len(gaps)} part")
    gpu = torch.cuda.get_device_name()
    line = result("greedy_agreement_share", "smollm2-135m", params, round(share, 5), "share", gpu=gpu)
    print(f"wrote {write('gpu_agreement', [line])}")


if __name__ == "__main__":
    main()
