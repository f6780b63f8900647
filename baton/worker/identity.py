"""What a worker is, as the directory and as callers are told."""

from baton.convert import layout_to_pb, worker_to_pb
from baton.directory.base import WorkerRecord
from baton.rpc import worker_pb2
from baton.types import Role, WorkerRef
from baton.worker.engine import EngineFacts
from baton.worker.options import WorkerOptions

_ROLE_TO_PB = {
    Role.PREFILL: worker_pb2.WORKER_ROLE_PREFILL,
    Role.DECODE: worker_pb2.WORKER_ROLE_DECODE,
    Role.AGGREGATED: worker_pb2.WORKER_ROLE_AGGREGATED,
}


class Identity:
    """One incarnation of one worker."""

    def __init__(self, options: WorkerOptions, role: Role, ref: WorkerRef) -> None:
        self.options = options
        self._role = role
        self._ref = ref

    def record(self, facts: EngineFacts, port: int) -> WorkerRecord:
        """For the directory."""
        return WorkerRecord(
            worker=self._ref,
            role=self._role,
            address=self._address(port),
            model=self.options.served_name,
            model_fingerprint=facts.layout.model_fingerprint,
            block_size=facts.layout.block_size,
            max_model_len=facts.max_model_len,
            num_blocks=facts.num_blocks,
            kv_dtype=facts.layout.dtype,
        )

    def _address(self, port: int) -> str:
        """`port`: the bound one, which stands in for one that was left open."""
        host, _, advertised = (self.options.advertise_address or f"{self.options.host}:0").rpartition(":")
        return f"{host}:{port if advertised == '0' else advertised}"

    def info(self, facts: EngineFacts) -> worker_pb2.WorkerInfo:
        """For WorkerControl."""
        return worker_pb2.WorkerInfo(
            worker=worker_to_pb(self._ref),
            role=_ROLE_TO_PB[self._role],
            model=self.options.served_name,
            model_fingerprint=facts.layout.model_fingerprint,
            max_model_len=facts.max_model_len,
            layout=layout_to_pb(facts.layout),
        )
