"""Real stacks: redis-server, gateway, workers and NIXL, as `baton up` starts them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.config import StackOptions
from baton.local.stack import LocalStack
from tests.e2e.client import assert_at_rest
from tests.fakes.browser import foreign_page, page, screenshot

__all__ = ["foreign_page", "page", "screenshot"]

OPTIONS = {"port": 0, "kv_cache_bytes": 1 << 30, "max_num_batched_tokens": 512, "max_model_len": 4096}


@pytest.fixture(scope="session")
def apart_stack(smollm2: Path) -> Iterator[LocalStack]:
    with LocalStack(StackOptions(model=str(smollm2), **OPTIONS)) as stack:  # type: ignore[arg-type]
        yield stack


@pytest.fixture(scope="session")
def aggregated_stack(smollm2: Path) -> Iterator[LocalStack]:
    with LocalStack(StackOptions(model=str(smollm2), aggregated=True, **OPTIONS)) as stack:  # type: ignore[arg-type]
        yield stack


@pytest.fixture
def apart(apart_stack: LocalStack) -> Iterator[LocalStack]:
    """One prefill and one decode worker; nothing may be left behind by a test."""
    yield apart_stack
    assert_at_rest([*apart_stack.worker_addresses.values()])


@pytest.fixture
def aggregated(aggregated_stack: LocalStack) -> Iterator[LocalStack]:
    """One worker that does both; nothing may be left behind by a test."""
    yield aggregated_stack
    assert_at_rest([*aggregated_stack.worker_addresses.values()])
