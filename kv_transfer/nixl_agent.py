"""One NIXL agent over one KV pool: the dozen calls that Baton makes, on the bindings of NIXL 1.5.

The bindings and not NIXL's `nixl_agent` class, because that class fixes the progress thread's delay at 0: the thread
then spins, and two idle agents took both cores of a two-core machine. With a delay the thread sleeps until a transport
has news for it, or for the delay at most: 0.02 cores an agent, and writes no slower.
"""

import importlib
import logging
import uuid
from typing import Any, Literal

import numpy as np
import torch

from baton.errors import BatonError, ErrorCode, invalid
from kv_transfer.base import Notification, PoolRegion
from kv_transfer.block_ids import BlockIds

# UCX does not always wake a sleeping thread, says NIXL's source: this bounds the delay then. NIXL rounds up to 1 ms.
_PROGRESS_DELAY_US = 1000

# Between GPUs every block is one copy that a CPU core has to start, about 8 us each: one thread starts 2 MiB blocks at
# 250 GB/s, four at 650 (docs/log.md). On the host a write is a copy by the core itself.
_GPU_BACKEND = {"num_threads": "4", "split_batch_size": "32"}


class NixlAgent:
    """Registers the pool and owns the agent. Handles are NIXL's: whoever gets one from here gives it back here.

    `errors` holds the exception types that NIXL raises. Every method but `close` may raise them.

    Raises:
        BatonError: FAILED_PRECONDITION when NIXL is not installed or cannot register the pool.
    """

    def __init__(self, worker_name: str, region: PoolRegion) -> None:
        self._nixl = _import_bindings()
        types: list[type] = [value for value in vars(self._nixl).values() if isinstance(value, type)]
        self.errors: tuple[type[Exception], ...] = (RuntimeError, *(t for t in types if issubclass(t, Exception)))
        self.memory, self.device_id = memory_of(region.device)
        self._memory_types = {"DRAM": self._nixl.DRAM_SEG, "VRAM": self._nixl.VRAM_SEG}
        # Unique in each life: a peer that still knows the last one must not take this for it.
        self.name = f"{worker_name}/{uuid.uuid4().hex}"
        try:
            self._agent: Any = self._nixl.nixlAgent(self.name, self._config())
            self._backends = [self._agent.createBackend("UCX", _GPU_BACKEND if self.memory == "VRAM" else {})]
            pool = [(region.address, region.num_blocks * region.block_bytes, self.device_id, "")]
            self._registration = self._nixl.nixlRegDList(self._memory_types[self.memory], pool)
            self._agent.registerMem(self._registration, self._backends)
        except self.errors as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"NIXL cannot register a KV pool of {region.num_blocks} blocks on {region.device} ({error}); on a GPU "
                "machine check that NIXL is the wheel for torch's CUDA release, and that UCX_TLS, if set, allows it",
            ) from error

    def _config(self) -> Any:
        config = self._nixl.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = _PROGRESS_DELAY_US
        config.useListenThread = False
        config.syncMode = self._nixl.NIXL_THREAD_SYNC_NONE  # all calls come from the engine core's one thread
        return config

    def metadata(self) -> bytes:
        """How other agents reach this one and its pool."""
        return bytes(self._agent.getLocalMD())

    def add_peer(self, metadata: bytes) -> str:
        """Learns another agent and returns its name."""
        return bytes(self._agent.loadRemoteMD(metadata)).decode()

    def remove_peer(self, name: str) -> None:
        """Closes the connection to another agent."""
        self._agent.invalidateRemoteMD(name)

    def prepare(
        self, peer: str | None, address: int, num_blocks: int, block_bytes: int, memory: str, device: int
    ) -> int:
        """A handle on a list of `num_blocks` descriptors, one a block; None prepares the own side of writes."""
        owner = self._nixl.NIXL_INIT_AGENT if peer is None else peer
        blocks = np.array([[address, block_bytes, device, block_bytes, num_blocks]], dtype=np.uint64)  # one stride
        return int(self._agent.prepXferDlist(owner, self._memory_types[memory], blocks, self._backends))

    def release_prepared(self, handle: int) -> None:
        """Gives back what `prepare` made."""
        self._agent.releasedDlistH(handle)

    def make_write(self, local: int, peer: int, blocks: BlockIds, notification: bytes | None) -> int:
        """A handle on a write between two prepared lists, not yet started."""
        message = notification or b""
        return int(
            self._agent.makeXferReq(
                self._nixl.NIXL_WRITE, local, blocks.src, peer, blocks.dst, message, self._backends, False
            )
        )

    def start_write(self, handle: int) -> bool:
        """Whether the write ended at once."""
        return bool(self._agent.postXferReq(handle, b"") == self._nixl.NIXL_SUCCESS)

    def write_ended(self, handle: int) -> bool:
        """Whether the write has ended; raises when it has failed."""
        return bool(self._agent.getXferStatus(handle) == self._nixl.NIXL_SUCCESS)

    def release_write(self, handle: int) -> None:
        """Gives back what `make_write` made. A write in flight is abandoned: some of its blocks may still land."""
        self._agent.releaseXferReq(handle)

    def notifications(self) -> list[Notification]:
        """What has arrived since the last call, by the worker names of the senders."""
        arrived: dict[str, list[bytes]] = self._agent.getNotifs({}, self._backends)
        return [
            Notification(name.rpartition("/")[0], payload) for name, all_of in arrived.items() for payload in all_of
        ]

    def close(self) -> None:
        """Releases the registration and ends the progress thread. Not idempotent: the owner calls it once."""
        self._agent.deregisterMem(self._registration, self._backends)
        self._agent = None


def memory_of(device: str) -> tuple[Literal["DRAM", "VRAM"], int]:
    """NIXL's kind of memory and device number for "cpu", "cuda:N", or "cuda", which is "cuda:0"."""
    if device == "cpu":
        return "DRAM", 0
    kind, colon, number = device.partition(":")
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise invalid(
            f"kv pool device: got {device!r}, expected 'cpu', 'cuda' or 'cuda:N'; start with another --device"
        )
    return "VRAM", int(number or 0)


def _import_bindings() -> Any:
    """NIXL's bindings from whichever wheel is installed; NIXL has no type stubs, so this is where Any comes in."""
    wheels = ["nixl_cu12", "nixl_cu13"]
    if (torch.version.cuda or "").startswith("13"):
        wheels.reverse()
    reasons = []
    raise_exceptions = logging.raiseExceptions
    for package in ("nixl", *wheels):  # "nixl" is the wheel that picks one of the others
        try:
            return importlib.import_module(f"{package}._bindings")
        except ImportError as error:
            reasons.append(f"{package}: {error}")
        finally:
            logging.raiseExceptions = raise_exceptions  # importing NIXL turns it off for the whole process
    raise BatonError(
        ErrorCode.FAILED_PRECONDITION,
        f"kv connector nixl: NIXL cannot be imported ({'; '.join(reasons)}); pip install {wheels[0].replace('_', '-')}",
    )
