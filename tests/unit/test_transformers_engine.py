"""A whole engine core on transformers' model code gives transformers' own greedy tokens."""

from pathlib import Path

import pytest
import torch
from test_transformers_models import GATED, SERVED, write_model
from transformers import AutoModelForCausalLM

from baton.errors import BatonError
from baton.load_options import LoadFormat, ModelImpl
from baton.types import Role, SamplingParams, WorkerRef
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.context import EngineContext
from engine.messages import AddLocal, Event, Finished, Tokens
from engine.roles.local import LocalRole
from kv_transfer.layout import check_compatible
from tests.fakes.role_pair import of, token_ids, turn

BLOCK, NEW_TOKENS = 8, 8


def make_role(
    folder: Path, events: list[Event], load_format: LoadFormat = LoadFormat.AUTO, impl: ModelImpl = ModelImpl.AUTO
) -> LocalRole:
    """Chunks of at most 16 tokens."""
    config = EngineConfig(
        model_path=str(folder),
        role=Role.AGGREGATED,
        worker=WorkerRef("local", "life-1"),
        load_format=load_format,
        model_impl=impl,
        max_model_len=128,
        cache=CacheConfig(block_size=BLOCK, kv_cache_bytes=4 << 20),
        scheduler=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8),
    )
    return LocalRole(EngineContext(config, events.extend))


def generate(role: LocalRole, events: list[Event], name: str, prompt: tuple[int, ...]) -> list[int]:
    role.handle(AddLocal(name, 1, prompt, SamplingParams(temperature=0, max_tokens=NEW_TOKENS)))
    for _ in range(40):
        turn(role)
    assert of(events, name, Finished)
    return token_ids(events, name)


@torch.inference_mode()
def expected(folder: Path, prompt: tuple[int, ...]) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["gpt_neox", "falcon"])
def test_greedy_tokens_with_chunks_and_a_prefix_hit(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, name, SERVED[name])
    events: list[Event] = []
    role = make_role(folder, events)
    first = tuple(range(10, 57))  # 47 tokens: 3 chunks
    second = (*first[:40], *range(100, 113))  # 5 blocks of the first one's
    assert generate(role, events, "first", first) == expected(folder, first)
    assert generate(role, events, "second", second) == expected(folder, second)
    assert of(events, "second", Tokens)[0].cached_tokens == 40
    assert role.check_integrity() == []


def test_kv_by_other_code_is_refused_by_name(tiny_llama: Path) -> None:
    """Its elements may stand in another order, which nothing else would show."""
    native, other = (make_role(tiny_llama, [], impl=impl) for impl in (ModelImpl.NATIVE, ModelImpl.TRANSFORMERS))
    with pytest.raises(BatonError, match=r"order: .* \(transformers\) .*, with the same --model-impl"):
        check_compatible(other.context.runner.layout, native.context.runner.layout)


@pytest.mark.parametrize("name", ["olmo2", "llama"])  # by transformers' code, and by ours
def test_dummy_weights_need_a_configuration_only(tmp_path: Path, name: str) -> None:
    full = write_model(tmp_path / "full", name, GATED)
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_bytes((full / "config.json").read_bytes())
    prompt, answers = tuple(range(10, 57)), []
    for _ in range(2):
        events: list[Event] = []
        role = make_role(folder, events, LoadFormat.DUMMY)
        answers.append(generate(role, events, "one", prompt))
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 1
