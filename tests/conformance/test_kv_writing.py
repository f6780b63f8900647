"""What every KV connector's receiver must know of writers, whichever connector it is."""

from collections.abc import Iterator

import pytest

from kv_transfer.base import KVReceiver, KVSender
from kv_transfer.inproc_network import InprocNetwork
from kv_transfer.registry import CONNECTORS
from tests.conformance.test_kv_connector import Bench, until


@pytest.fixture(params=CONNECTORS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param, InprocNetwork() if request.param == "inproc" else None)
    yield bench
    for opened in bench.opened:
        opened.close()


def told(bench: Bench) -> tuple[KVSender, KVReceiver]:
    """A sender that has begun to write grant "g" into a receiver's pool."""
    (sender, _), (receiver, _) = bench.sender(), bench.receiver()
    sender.connect("d#1", receiver.endpoint())

    def begun() -> bool:
        sender.poll()
        receiver.poll()
        return sender.begin("d#1", "g")

    until(begun, "begin")
    receiver.poll()
    assert receiver.writing("g")
    assert not receiver.writing("other")
    return sender, receiver


def no_more(receiver: KVReceiver) -> None:
    def ended() -> bool:
        receiver.poll()
        return not receiver.writing("g")

    until(ended, "end")


def test_writing_is_from_begin_to_end(bench: Bench) -> None:
    sender, receiver = told(bench)
    sender.end("d#1", "unknown")
    sender.end("d#2", "g")
    assert sender.begin("d#1", "g")
    receiver.poll()
    assert receiver.writing("g")
    sender.end("d#1", "g")
    no_more(receiver)


@pytest.mark.parametrize("how", ["disconnect", "close"])
def test_a_sender_that_leaves_has_ended(bench: Bench, how: str) -> None:
    sender, receiver = told(bench)
    sender.disconnect("d#1") if how == "disconnect" else sender.close()
    no_more(receiver)


def test_begin_needs_a_connected_peer(bench: Bench) -> None:
    sender, _ = bench.sender()
    with pytest.raises(ValueError, match="got peer 'd#1', expected one that is connected"):
        sender.begin("d#1", "g")
