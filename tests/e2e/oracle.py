"""What transformers says the answers are, and how sure it is of each token."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

# Below this gap between the best two logits, float32 rounding may decide; far above what different kernels differ by
# (1e-4 at most on this model), so a prompt with such a gap would test the weather.
MIN_MARGIN = 1e-3


class Expected(NamedTuple):
    """Greedy tokens of one prompt, and the smallest gap between best and second-best logit on the way."""

    token_ids: list[int]
    margin: float


class Oracle:
    """transformers in float32, greedy."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._eos = self._model.config.eos_token_id

    @torch.inference_mode()
    def answer(self, prompt: Sequence[int], max_tokens: int) -> Expected:
        ids = torch.tensor([list(prompt)])
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.cat(out.logits).topk(2).values
        return Expected(out.sequences[0, ids.shape[1] :].tolist(), float((best[:, 0] - best[:, 1]).min()))


def prompts_with_clear_answers(
    oracle: Oracle, lengths: Sequence[int], max_tokens: int, seed: int = 0
) -> tuple[list[list[int]], list[Expected]]:
    """One random prompt of each length whose greedy answer does not hang on a tie; drawn again where it does."""
    generator = torch.Generator().manual_seed(seed)
    prompts, answers = [], []
    for length in lengths:
        while True:
            prompt = torch.randint(20, 49000, (length,), generator=generator).tolist()
            expected = oracle.answer(prompt, max_tokens)
            if expected.margin >= MIN_MARGIN:
                break
        prompts.append(prompt)
        answers.append(expected)
    return prompts, answers
