"""Command line of a decode or aggregated worker: `python -m decode_service --model FOLDER [--aggregated]`."""

import sys

import grpc

from baton.rpc import worker_pb2_grpc
from baton.telemetry.exposition import Metrics
from baton.telemetry.tracing import Tracing
from baton.types import Role, WorkerRef
from baton.worker.admission import Admission
from baton.worker.options import parse_options
from baton.worker.shell import run, run_worker
from decode_service.aggregated import SERVICE_NAME, AggregatedServicer
from decode_service.servicer import DecodeServicer
from engine.attempt_metrics import AttemptMetrics
from engine.client import EngineClient
from engine.options import engine_config


def main() -> int:
    """The process's exit status."""
    options = parse_options("decode", can_aggregate=True)
    role = Role.AGGREGATED if options.aggregated else Role.DECODE
    servicer_class = AggregatedServicer if options.aggregated else DecodeServicer

    async def start_engine(worker: WorkerRef) -> EngineClient:
        return await EngineClient.start(engine_config(options, role, worker))

    def add_service(
        engine: EngineClient, server: grpc.aio.Server, tracing: Tracing, admission: Admission, metrics: Metrics
    ) -> None:
        engine.on_milestone = AttemptMetrics(metrics, role).observe
        servicer = servicer_class(engine, tracing, options.name, admission)
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(servicer, server)

    return run(run_worker(options, role, SERVICE_NAME, start_engine, add_service))


if __name__ == "__main__":
    sys.exit(main())
