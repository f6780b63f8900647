"""The life of a worker service: start, listen, register, serve, and leave in order."""

import asyncio
import logging
import os
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import grpc

from baton.directory.connection import check_url
from baton.directory.metrics import RedisMetrics
from baton.directory.registrar import WorkerRegistrar
from baton.errors import BatonError, invalid
from baton.grpc_util.server import Server
from baton.rpc import worker_pb2_grpc
from baton.telemetry.exposition import Metrics
from baton.telemetry.scrape_server import ScrapeServer
from baton.telemetry.tracing import Tracing
from baton.tls import make_tls
from baton.types import Role, WorkerRef
from baton.worker.admission import Admission
from baton.worker.control import ControlServicer
from baton.worker.engine import Engine
from baton.worker.identity import Identity
from baton.worker.leaving import Asked, Leaving
from baton.worker.metrics import WorkerFigures
from baton.worker.options import WorkerOptions

logger = logging.getLogger(__name__)

GRACE_S = 2.0  # for calls to take their last answers when the worker leaves
_CONTROL = "baton.v1.WorkerControl"
_WILDCARDS = ("0.0.0.0", "::", "[::]")

T = TypeVar("T")
EngineT = TypeVar("EngineT", bound=Engine)


def run(work: Coroutine[Any, Any, int]) -> int:
    """Runs a service to its exit code; a `BatonError` is told on stderr and makes 1."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return asyncio.run(work)
    except BatonError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1


async def run_worker(
    options: WorkerOptions,
    role: Role,
    service_name: str,
    start_engine: Callable[[WorkerRef], Awaitable[EngineT]],
    add_service: Callable[[EngineT, grpc.aio.Server, Tracing, Admission, Metrics], None],
) -> int:
    """Serves until it is asked to leave and has left in order (0), or until the engine dies (1).

    Args:
        options: the command line.
        role: what the worker registers as.
        service_name: full name of the gRPC service that `add_service` adds beside WorkerControl.
        start_engine: called once with the worker's name and new incarnation; cancelled when a signal comes meanwhile.
        add_service: adds the role's service to the server, and its metrics to the process's.

    Raises:
        BatonError: INVALID_ARGUMENT or FAILED_PRECONDITION when the worker cannot start.
    """
    if options.advertise_address is None and options.host in _WILDCARDS:
        raise invalid(f"got --host {options.host}, which nobody can connect to; add --advertise-address, such as auto")
    check_url(options.redis_url)
    asked, admission = Asked(options.drain_timeout_s), Admission(options.name)
    asked.listen()
    worker = WorkerRef(options.name, uuid.uuid4().hex)
    tls = make_tls(options.tls_dir, options.mtls)
    tracing = Tracing(f"baton-{role.value}", options.otlp_endpoint, options.name, tls)
    metrics = Metrics()
    try:
        engine = await _unless(asked.drain, start_engine(worker))  # there is nothing to drain yet
        if engine is None:
            return 0
        try:
            server = Server([service_name, _CONTROL], tls)
            add_service(engine, server.grpc, tracing, admission, metrics)
            return await _serve(Identity(options, role, worker), engine, server, asked, admission, metrics)
        finally:
            await engine.close()
    finally:
        tracing.close()


async def _serve(
    identity: Identity, engine: Engine, server: Server, asked: Asked, admission: Admission, metrics: Metrics
) -> int:
    """From listening to having stopped to listen; the exit code."""
    options = identity.options
    control = ControlServicer(identity.info(engine.ready), engine, asked.begin_drain)
    worker_pb2_grpc.add_WorkerControlServicer_to_server(control, server.grpc)
    port = await server.start(options.host, options.port)
    record = identity.record(engine.ready, port)
    registrar = WorkerRegistrar(options.redis_url, record, RedisMetrics(metrics))
    engine.on_cache_change = registrar.update_blocks
    WorkerFigures(record.role, options.name, record.model, engine, admission).add_to(metrics, registrar)
    scrapes: ScrapeServer | None = None
    try:
        if options.metrics_port is not None:
            scrapes = ScrapeServer(metrics, options.host, options.metrics_port)
            if options.metrics_port_file:
                _write_atomically(Path(options.metrics_port_file), str(scrapes.port))
        await server.set_serving(True)
        await registrar.start()
        if options.port_file:
            _write_atomically(Path(options.port_file), str(port))
        logger.info("%s worker %s serves %s at %s", record.role, options.name, record.model, record.address)
        await _unless(asked.drain, engine.wait_dead())
        if engine.death is None:
            leaving = Leaving(options.name, engine, server, registrar, admission)
            await _unless(asked.stop, leaving.drain(asked.timeout_s))
            await leaving.abort_rest()
        if engine.death is None:
            logger.info("worker %s stops", options.name)
            return 0
        logger.error("the engine core of worker %s %s; giving up", options.name, engine.death)
        return 1
    finally:
        await server.set_serving(False)
        closing = [registrar.close(), server.close(GRACE_S)]
        await asyncio.gather(*closing, *([scrapes.close()] if scrapes else []))


async def _unless(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """What `work` gives, or None when `stop` is set first; `work` is cancelled then."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait([working])
        return None if working.cancelled() else working.result()
    finally:
        stopping.cancel()


def _write_atomically(file: Path, text: str) -> None:
    """Whoever waits for the file never reads half of it."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(file)
