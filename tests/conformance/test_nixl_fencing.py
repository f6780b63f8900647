"""A prefill process that is stopped for longer than any lease, with a write to come or under way, over real NIXL."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.types import Grant, Role
from engine.config import LeaseConfig
from engine.messages import AddPrefill, Finished, Granted, Refused, Release, Reserve
from tests.fakes.role_pair import GREEDY, PROMPT
from tests.fakes.role_process import RoleProcess, until

LEASE = LeaseConfig(lease_s=2.0, longest_write_s=0.4, clock_margin_s=0.1)
DECODE_BLOCKS = 16
OTHER_PROMPT = tuple(range(100, 147))
PATTERN = 7.0  # in the blocks that another request has got
WIDER = 32  # in bytes of a block
VICTIM = 3.0  # in those that the stopped process writes to

Start = Callable[..., RoleProcess]


@pytest.fixture(scope="module")
def decode(tiny_llama: Path) -> Iterator[RoleProcess]:
    decode = RoleProcess(tiny_llama, Role.DECODE, "decode", DECODE_BLOCKS, LEASE)
    yield decode
    decode.end()


@pytest.fixture(scope="module")
def wide_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with WIDER times the KV of `tiny_llama`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=256,
    )
    folder = tmp_path_factory.mktemp("wide-llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def start(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a prefill process with a fault."""
    started: list[RoleProcess] = []

    def start_prefill(folder: Path = tiny_llama, blocks: int = 40, **rule: object) -> RoleProcess:
        monkeypatch.setenv("BATON_FAULTS", json.dumps({"only_for_tests": "yes", "rules": [rule]}))
        started.append(RoleProcess(folder, Role.PREFILL, f"prefill-{time.time_ns()}", blocks, LEASE))
        return started[-1]

    yield start_prefill
    for process in started:
        process.end()


def reserve(decode: RoleProcess, name: str, prompt: tuple[int, ...] = PROMPT) -> Grant:
    decode.handle(Reserve(name, 1, prompt, GREEDY))
    (granted,) = decode.events(name, Granted)
    assert isinstance(granted.grant, Grant)
    return granted.grant


def wait_out_the_quarantine(decode: RoleProcess, grant: Grant) -> None:
    """Decode has given the grant up, and its blocks would be free again by the clock."""
    end_s = LEASE.quarantine_end_unix_ns(grant.lease_deadline_unix_ns) / 1e9
    until(lambda: time.time() > end_s + 0.3)
    assert decode.stats().grants == 0


def other_request(decode: RoleProcess, grant: Grant, name: str) -> tuple[Grant, bytes]:
    """A request that gets other blocks, while the next one gets none, and what is in its blocks."""
    other = reserve(decode, name, OTHER_PROMPT)
    assert not set(other.block_ids) & set(grant.block_ids)
    decode.handle(Reserve(f"{name}-late", 1, tuple(range(200, 247)), GREEDY))
    assert decode.events(f"{name}-late", Refused)
    decode.fill(other.block_ids, PATTERN)
    return other, decode.read(other.block_ids)


def at_rest(decode: RoleProcess, within_s: float) -> None:
    def free() -> bool:
        blocks = decode.stats().blocks
        return blocks.free + blocks.cached == blocks.total

    until(free, within_s)


def test_stopped_between_the_lease_and_the_post(decode: RoleProcess, start: Start) -> None:
    prefill = start(point="kv.post", action="stop", nth=1)
    grant = reserve(decode, "a")
    prefill.tell(AddPrefill("a", 1, PROMPT, GREEDY, grant))
    prefill.wait_stopped()
    wait_out_the_quarantine(decode, grant)
    assert decode.stats().blocks.quarantined == len(grant.block_ids)
    decode.fill(grant.block_ids, VICTIM)
    before = decode.read(grant.block_ids)
    other, pattern = other_request(decode, grant, "other-a")

    prefill.signal(signal.SIGCONT)

    until(lambda: decode.stats().blocks.quarantined == 0)
    assert decode.read(grant.block_ids) != before  # it did write
    assert decode.read(other.block_ids) == pattern
    decode.handle(Release(other.grant_id, fenced=True))
    at_rest(decode, 5)


def test_stopped_with_a_write_under_way(wide_llama: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP with small buffers, so that a stopped receiver leaves most of a write with the sender."""
    for name, value in (("UCX_TLS", "tcp"), ("UCX_TCP_SNDBUF", "4k"), ("UCX_TCP_RCVBUF", "4k")):
        monkeypatch.setenv(name, value)
    decode = RoleProcess(wide_llama, Role.DECODE, "decode-tcp", 24 * WIDER, LEASE)
    try:
        _stop_with_a_write_under_way(decode, start(wide_llama, 24 * WIDER, point="kv.post", action="stop", nth=1))
    finally:
        decode.end()


def _stop_with_a_write_under_way(decode: RoleProcess, prefill: RoleProcess) -> None:
    prompt = tuple(range(10, 105))
    grant = reserve(decode, "b", prompt)
    prefill.tell(AddPrefill("b", 1, prompt, GREEDY, grant))
    prefill.wait_stopped()
    decode.stop()
    prefill.signal(signal.SIGCONT)
    prefill.told()
    prefill.stats()  # it has posted and goes on
    prefill.stop()
    decode.signal(signal.SIGCONT)
    wait_out_the_quarantine(decode, grant)
    assert decode.stats().blocks.quarantined == len(grant.block_ids)
    decode.fill(grant.block_ids, VICTIM)
    before = decode.read(grant.block_ids)
    other, pattern = other_request(decode, grant, "other-b")
    assert decode.read(grant.block_ids) == before

    prefill.signal(signal.SIGCONT)

    until(lambda: decode.stats().blocks.quarantined == 0)
    assert decode.read(grant.block_ids) != before  # most of it came now
    assert decode.read(other.block_ids) == pattern
    decode.handle(Release(other.grant_id, fenced=True))
    at_rest(decode, 5)


def test_killed_while_stopped(decode: RoleProcess, start: Start) -> None:
    prefill = start(point="kv.post", action="stop", nth=1)
    grant = reserve(decode, "c")
    prefill.tell(AddPrefill("c", 1, PROMPT, GREEDY, grant))
    prefill.wait_stopped()
    wait_out_the_quarantine(decode, grant)
    assert decode.stats().blocks.quarantined == len(grant.block_ids)
    prefill.signal(signal.SIGKILL)
    at_rest(decode, 5)


def test_a_writer_that_lives_keeps_nothing(decode: RoleProcess, start: Start) -> None:
    prefill = start(point="kv.post", action="delay")
    grant = reserve(decode, "d")
    prefill.handle(AddPrefill("d", 1, PROMPT, GREEDY, grant))
    until(lambda: prefill.events("d", Finished) and decode.events("d", Finished))
    at_rest(decode, 5)
