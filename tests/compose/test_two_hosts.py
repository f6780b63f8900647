"""Prefill on one host, decode on another, each with a dockerd and an address of its own: KV over TCP between them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.composed import Project
from tests.compose.machine import Machine
from tests.e2e.client import ask_together, greedy, token_request
from tests.e2e.oracle import Oracle, prompts_with_clear_answers

pytestmark = pytest.mark.timeout(900)

FILES = ("docker-compose.cpu.yml", "docker-compose.hosts.yml")
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def first_host(machine: Machine, second_machine: Machine, environment: dict[str, str]) -> Iterator[Project]:
    """Redis, gateway and decode; prefill is on the other one."""
    shared = environment | {
        "BATON_DTYPE": "float32",
        "BATON_REDIS_URL": f"redis://{machine.address}:6379/0",
        "BATON_OTLP_ENDPOINT": f"{machine.address}:4317",
        "BATON_WORKER_FLAGS": "--kv-cache-bytes 256MiB --max-model-len 2048 --num-threads 1",
    }
    first = Project(machine, "first", FILES, shared | {"BATON_BIND": machine.address})
    second = Project(second_machine, "second", FILES, shared | {"BATON_BIND": second_machine.address})
    try:
        first.up("redis", "collector", "gateway", "decode")
        second.up("prefill")
        yield first
    finally:
        second.down()
        first.down()


def test_nothing_assumes_one_host(first_host: Project, second_machine: Machine, smollm2: Path) -> None:
    prompts, expected = prompts_with_clear_answers(Oracle(smollm2), [70, 200, 40, 120], MAX_TOKENS)
    answers = ask_together(first_host.gateway_address, [token_request(ids, greedy(MAX_TOKENS)) for ids in prompts])
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    longer = [answer for answer in answers if len(answer.token_ids) > 1]  # one token needs no decode worker
    assert longer
    assert all(answer.hand_over.bytes > 0 for answer in longer)
    (prefill,) = first_host.registered("prefill")
    (redis,) = first_host.containers("redis")
    key = first_host.machine.docker("exec", redis, "redis-cli", "--raw", "keys", f"baton:*:worker:{prefill}").strip()
    assert second_machine.address in first_host.machine.docker("exec", redis, "redis-cli", "--raw", "get", key)
