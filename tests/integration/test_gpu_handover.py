"""The hand-over between GPUs: engine cores with their pools in GPU memory and NIXL between them."""

import asyncio
from pathlib import Path

import pytest

from baton.types import Role, SamplingParams, WorkerRef
from engine.client import EngineClient
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.messages import AddLocal, AddPrefill, Finished, Granted, Reserve, Tokens

PROMPTS = [tuple(range(10 + n, 10 + n + length)) for n, length in enumerate((1, 15, 16, 17, 100, 200))]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def make_config(folder: Path, role: Role, device: str) -> EngineConfig:
    return EngineConfig(
        model_path=str(folder),
        role=role,
        worker=WorkerRef(f"{role.value}-{device}", "life-1"),
        device=device,
        cache=CacheConfig(block_size=16, kv_cache_bytes=64 << 20),
        scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=16),
    )


async def local_tokens(folder: Path, device: str) -> list[list[int]]:
    engine = await EngineClient.start(make_config(folder, Role.AGGREGATED, device))
    try:

        async def one(number: int) -> list[int]:
            stream = engine.submit(AddLocal(str(number), 1, PROMPTS[number], GREEDY))
            return [token async for event in stream if isinstance(event, Tokens) for token in event.token_ids]

        return await asyncio.gather(*(one(number) for number in range(len(PROMPTS))))
    finally:
        await engine.close()


async def apart_tokens(folder: Path, prefill_device: str, decode_device: str) -> list[list[int]]:
    prefill = await EngineClient.start(make_config(folder, Role.PREFILL, prefill_device))
    decode = await EngineClient.start(make_config(folder, Role.DECODE, decode_device))
    try:

        async def one(number: int) -> list[int]:
            name = str(number)
            decoding = decode.submit(Reserve(name, 1, PROMPTS[number], GREEDY))
            granted = await anext(decoding)
            assert isinstance(granted, Granted)
            prefilling = prefill.submit(AddPrefill(name, 1, PROMPTS[number], GREEDY, granted.grant))
            events = [event async for event in prefilling]
            assert isinstance(events[-1], Finished), events[-1]
            events += [event async for event in decoding]
            assert isinstance(events[-1], Finished), events[-1]
            return [token for event in events if isinstance(event, Tokens) for token in event.token_ids]

        tokens = await asyncio.gather(*(one(number) for number in range(len(PROMPTS))))
        for engine in (prefill, decode):
            reply = await engine.stats(check=True)
            assert reply.problems == ()
            assert reply.stats.blocks.active == 0
        return tokens
    finally:
        await prefill.close()
        await decode.close()


@pytest.mark.gpu
async def test_one_gpu_gives_the_cpus_tokens(tiny_llama: Path) -> None:
    assert await local_tokens(tiny_llama, "cuda:0") == await local_tokens(tiny_llama, "cpu")


@pytest.mark.gpu
async def test_two_engines_on_one_gpu(tiny_llama: Path) -> None:
    assert await apart_tokens(tiny_llama, "cuda:0", "cuda:0") == await local_tokens(tiny_llama, "cpu")


@pytest.mark.multi_gpu
async def test_across_two_gpus(tiny_llama: Path) -> None:
    assert await apart_tokens(tiny_llama, "cuda:0", "cuda:1") == await local_tokens(tiny_llama, "cpu")
