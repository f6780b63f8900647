"""Command line of a prefill worker: `python -m prefill_service --model FOLDER`."""

import sys

import grpc

from baton.rpc import worker_pb2_grpc
from baton.telemetry.exposition import Metrics
from baton.telemetry.tracing import Tracing
from baton.types import Role, WorkerRef
from baton.worker.admission import Admission
from baton.worker.options import parse_options
from baton.worker.shell import run, run_worker
from engine.attempt_metrics import AttemptMetrics
from engine.client import EngineClient
from engine.options import engine_config
from prefill_service.servicer import SERVICE_NAME, PrefillServicer


def main() -> int:
    """The process's exit status."""
    options = parse_options("prefill")

    async def start_engine(worker: WorkerRef) -> EngineClient:
        return await EngineClient.start(engine_config(options, Role.PREFILL, worker))

    def add_service(
        engine: EngineClient, server: grpc.aio.Server, tracing: Tracing, admission: Admission, metrics: Metrics
    ) -> None:
        engine.on_milestone = AttemptMetrics(metrics, Role.PREFILL).observe
        servicer = PrefillServicer(engine, tracing, options.name, admission)
        worker_pb2_grpc.add_PrefillWorkerServicer_to_server(servicer, server)

    return run(run_worker(options, Role.PREFILL, SERVICE_NAME, start_engine, add_service))


if __name__ == "__main__":
    sys.exit(main())
