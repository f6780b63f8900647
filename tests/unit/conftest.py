"""A prefill and a decode role joined in one process, for the tests of roles."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.runner import ModelRunner
from tests.fakes.role_pair import Clock, Pair


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def pair(tiny_llama: Path) -> Iterator[Pair]:
    pair = Pair(tiny_llama)
    yield pair
    pair.close()


@pytest.fixture(params=[False, True], ids=["", "overlapped"])
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs a test with engine steps one after the other, and once more with each launched before the last is read.

    On a CPU a launch computes at once, but its tokens are told as late as a GPU's.
    """
    monkeypatch.setattr(ModelRunner, "on_gpu", property(lambda runner: request.param))
    return request.param
