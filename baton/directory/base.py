"""What the directory holds: worker records under a lease, and block hashes a worker incarnation owns."""

import msgspec

from baton.types import Role, WorkerRef


class WorkerRecord(msgspec.Struct, frozen=True):
    """One registered worker."""

    worker: WorkerRef
    role: Role
    address: str  # host:port of its gRPC server
    model: str  # the name clients use
    model_fingerprint: str
    block_size: int
    max_model_len: int
    num_blocks: int
    kv_dtype: str = ""  # of its KV pool; "" from a worker that is too old to say
    draining: bool = False  # it takes nothing new and is about to leave

    @property
    def kv_format(self) -> tuple[int, str]:
        """Block size and dtype: only workers with the same two can exchange KV."""
        return self.block_size, self.kv_dtype


def workers_key(model_fingerprint: str) -> str:
    """A set of worker names; a name whose record has expired is dead."""
    return f"baton:{{{model_fingerprint}}}:workers"


def worker_key(model_fingerprint: str, name: str) -> str:
    """A worker's record as JSON, with the lease as its time to live."""
    return f"baton:{{{model_fingerprint}}}:worker:{name}"


def events_key(model_fingerprint: str) -> str:
    """A stream of what all workers of the model store and remove; gone some time after the last worker."""
    return f"baton:{{{model_fingerprint}}}:events"


def sequence_key(model_fingerprint: str, worker: WorkerRef) -> str:
    """The number of the newest event that the set of block hashes has in it; it lives as long as the set."""
    return f"baton:{{{model_fingerprint}}}:sequence:{worker.name}:{worker.incarnation}"


def blocks_key(model_fingerprint: str, worker: WorkerRef) -> str:
    """A set of the block hashes that one incarnation owns, with a time to live renewed by heartbeat."""
    return f"baton:{{{model_fingerprint}}}:blocks:{worker.name}:{worker.incarnation}"
