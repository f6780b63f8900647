"""A prefill and a decode role joined in one process, for the tests of roles."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.role_pair import Clock, Pair


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def pair(tiny_llama: Path) -> Iterator[Pair]:
    pair = Pair(tiny_llama)
    yield pair
    pair.close()
