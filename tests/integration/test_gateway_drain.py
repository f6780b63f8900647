"""A worker that says in the directory that it drains: requests go around it, and to it when there is no other."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from baton.types import Role
from gateway.config import Limits
from tests.fakes.gateway_stack import ANSWER, Stack, ids_of, running_stack
from tests.fakes.text_model import write_text_model

ROLES = [("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model, ROLES, Limits(poll_interval_s=60)) as running:
        yield running


async def set_draining(stack: Stack, *names: str) -> None:
    stack.directory.records = [
        msgspec.structs.replace(record, draining=record.worker.name in names) for record in stack.directory.records
    ]
    await stack.gateway.pool.refresh()


async def test_requests_go_around_a_worker_that_drains(stack: Stack) -> None:
    for worker in stack.directory.records:
        stack.directory.owned[worker.worker] = 2 if worker.worker.name in ("p0", "d0") else 0  # most of the prefix
    await set_draining(stack, "p0", "d0")
    for _ in range(3):
        assert ids_of(await stack.generate()) == ANSWER
    assert (len(stack.workers["p1"].prefill.requests), len(stack.workers["d1"].decode.reserves)) == (3, 3)
    assert stack.prefill.requests == stack.decode.reserves == []


async def test_a_worker_that_drains_is_the_last_resort(stack: Stack) -> None:
    """It may still take a request that came before it heard of its own drain, and says no for itself."""
    await set_draining(stack, *stack.workers)
    assert ids_of(await stack.generate()) == ANSWER
