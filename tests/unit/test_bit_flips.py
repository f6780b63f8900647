"""1,000 bits of 1,000 that change in transferred KV are seen before a request is admitted."""

import random
from pathlib import Path

import pytest
import torch
from google.protobuf.message import DecodeError

from baton.convert import decode_kv_ready, encode_kv_ready
from baton.faults import flip
from baton.types import ChunkDigest, KvReady, WorkerRef
from engine.messages import Admitted, Finished
from tests.fakes.role_pair import BLOCK, PROMPT, Pair, of, turn

FLIPS = 1000


def test_every_flipped_bit_is_seen(tiny_llama: Path) -> None:
    pair = Pair(tiny_llama)
    granted = pair.start("a")
    while not of(pair.prefill_events, "a", Finished):
        turn(pair.prefill)
    role = pair.decode
    (notification,) = role._receiver.poll()
    ready, entry = decode_kv_ready(notification.payload), role._grants.by_id(granted.grant.grant_id)
    assert entry is not None
    assert role._problem_with_kv(ready, entry) is None
    words = role.context.runner.pool.view(torch.int32)  # [blocks, kv heads, layers, 2, tokens, dim]
    rng, detected = random.Random(0), 0
    for _ in range(FLIPS):
        block, token = divmod(rng.randrange(len(PROMPT)), BLOCK)
        rows = words[entry.request.block_ids[block], :, :, :, token].flatten()
        place, bit = rng.randrange(len(rows)), rng.randrange(32)
        _flip(words, entry.request.block_ids[block], token, place, bit)
        detected += "digest mismatch" in (role._problem_with_kv(ready, entry) or "")
        _flip(words, entry.request.block_ids[block], token, place, bit)
    print(f"bit flips detected: {detected} of {FLIPS}")
    assert detected == FLIPS
    role._receiver._arrived.append(notification)  # as it was sent, after all
    pair.pump()
    assert of(pair.decode_events, "a", Admitted)
    pair.assert_at_rest()
    pair.close()


def test_every_flipped_bit_of_a_kv_ready_is_seen() -> None:
    """Its first token is drawn by prefill and told to the client by decode's continuation: no digest covers it."""
    ready = KvReady("g", "r", 1, "life", WorkerRef("p", "life"), (ChunkDigest(0, 47, 2**63),), 40, 1, 10**18)
    payload = encode_kv_ready(ready)
    assert decode_kv_ready(payload) == ready
    for bit in range(8 * len(payload)):
        with pytest.raises(DecodeError):
            decode_kv_ready(flip(payload, bit))


def _flip(words: torch.Tensor, block: int, token: int, place: int, bit: int) -> None:
    rows = words[block, :, :, :, token]
    index = torch.unravel_index(torch.tensor(place), rows.shape)
    rows[index] ^= torch.tensor(1 << bit if bit < 31 else -(2**31), dtype=torch.int32)
