"""What NIXL's own part of an endpoint may not be, and how the NIXL connector behaves in its process."""

import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from baton.errors import BatonError, ErrorCode
from baton.types import KvEndpoint
from kv_transfer.base import PoolRegion
from kv_transfer.nixl import NixlReceiver, NixlSender
from kv_transfer.nixl_agent import NixlAgent, memory_of

POOL = np.zeros((8, 4096), dtype=np.uint8)
REGION = PoolRegion(POOL.ctypes.data, 8, 4096)


@pytest.fixture
def sender() -> Iterator[NixlSender]:
    sender = NixlSender(REGION, "prefill")
    yield sender
    sender.close()


@pytest.fixture
def fields() -> Iterator[dict[str, Any]]:
    """A live receiver's metadata."""
    receiver = NixlReceiver(REGION, "decode")
    yield msgspec.msgpack.decode(receiver.endpoint().metadata)
    receiver.close()


def endpoint(fields: dict[str, Any], **changes: object) -> KvEndpoint:
    return KvEndpoint("nixl", msgspec.msgpack.encode({**fields, **changes}))


def test_garbled_agent_metadata_never_reaches_nixl(sender: NixlSender, fields: dict[str, Any]) -> None:
    for position in range(0, len(fields["agent_metadata"]), 37):
        garbled = bytearray(fields["agent_metadata"])
        garbled[position] ^= 1
        with pytest.raises(BatonError, match="got garbled NIXL metadata from peer d#1") as caught:
            sender.connect("d#1", endpoint(fields, agent_metadata=bytes(garbled)))
        assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "changes", [{"address": 4096}, {"address": 2**63 - 4096}, {"num_blocks": 9}, {"memory": "VRAM"}, {"device_id": 3}]
)
def test_a_range_that_the_peer_did_not_register_is_refused(
    sender: NixlSender, fields: dict[str, Any], changes: dict[str, object]
) -> None:
    with pytest.raises(BatonError, match="expected a range that it registered with NIXL") as caught:
        sender.connect("d#1", endpoint(fields, **changes))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    sender.connect("d#1", endpoint(fields))


@pytest.mark.parametrize("changes", [{"address": -1}, {"address": 2**64 - 4096}, {"device_id": -1}, {"address": "0"}])
def test_a_range_that_cannot_be_is_refused(
    sender: NixlSender, fields: dict[str, Any], changes: dict[str, object]
) -> None:
    with pytest.raises(BatonError, match="metadata from peer d#1 that nixl cannot read") as caught:
        sender.connect("d#1", endpoint(fields, **changes))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("device", ["tpu:0", "cuda:", "cuda:x", "cuda0", ""])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(BatonError, match=r"kv pool device: got '.*', expected 'cpu', 'cuda' or 'cuda:N'") as caught:
        NixlSender(REGION._replace(device=device), "prefill")
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("device", "memory"),
    [("cpu", ("DRAM", 0)), ("cuda", ("VRAM", 0)), ("cuda:0", ("VRAM", 0)), ("cuda:3", ("VRAM", 3))],
)
def test_devices_have_torchs_names(device: str, memory: tuple[str, int]) -> None:
    assert memory_of(device) == memory


def test_what_nixl_does_not_take_back_is_no_reason_to_fail(
    sender: NixlSender, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: NixlAgent, handle: object) -> None:
        raise RuntimeError("NIXL_ERR_BACKEND")

    sender.connect("d#1", endpoint(fields))
    with monkeypatch.context() as patch:
        for name in ("release_write", "release_prepared", "remove_peer"):
            patch.setattr(NixlAgent, name, refuse)
        sender.post("d#1", [0], [0])
        deadline = time.monotonic() + 20
        while not (ended := sender.poll()):
            assert time.monotonic() < deadline
        assert [done.error for done in ended] == [None]
        sender.disconnect("d#1")
    assert caplog.text.count("NIXL_ERR_BACKEND") == 3


def test_every_life_of_a_worker_has_a_name_of_its_own() -> None:
    receivers = [NixlReceiver(REGION, "decode") for _ in range(2)]
    assert receivers[0].endpoint() != receivers[1].endpoint()
    for receiver in receivers:
        receiver.close()


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(BatonError, match=r"NIXL cannot be imported \(nixl: .*pip install nixl-cu1[23]") as caught:
        NixlSender(REGION, "prefill")
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


def test_idle_connectors_leave_the_processor_alone(sender: NixlSender, fields: dict[str, Any]) -> None:
    """NIXL's own agent class makes each of the two spin on a core."""
    sender.connect("d#1", endpoint(fields))
    cpu_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - cpu_s < 0.25


def test_nothing_is_printed_and_logging_is_left_as_it_was() -> None:
    program = """
import logging
import numpy as np
from kv_transfer.base import PoolRegion
from kv_transfer.registry import make_receiver, make_sender
pool = np.zeros((4, 4096), dtype=np.uint8)
region = PoolRegion(pool.ctypes.data, 4, 4096)
sender, receiver = make_sender("nixl", region, "p"), make_receiver("nixl", region, "d")
sender.connect("d#1", receiver.endpoint())
sender.post("d#1", [0], [1])
while not sender.poll():
    pass
sender.close()
receiver.close()
assert logging.raiseExceptions
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
