"""One gateway process: builds its parts, starts and stops them."""

import asyncio
import logging
from pathlib import Path

from baton.grpc_util.server import Server
from baton.model_spec import ModelSpec
from baton.rpc import admin_pb2_grpc, inference_pb2_grpc
from baton.telemetry.exposition import Metrics
from baton.telemetry.scrape_server import ScrapeServer
from baton.telemetry.tracing import Tracing
from baton.tls import make_tls
from gateway.access.access import Access
from gateway.access.key_file import KeyFile
from gateway.admin import ADMIN_NAME, AdminService
from gateway.admission.core import AdmissionCore
from gateway.admission.front import Admission
from gateway.admission.metrics import AdmissionMetrics
from gateway.channelz import add_channelz
from gateway.chat import ChatConfig
from gateway.config import GatewayConfig, Limits
from gateway.http.app import make_app
from gateway.http.front import Front
from gateway.http.server import HttpServer
from gateway.metrics import GatewayMetrics, PoolFigures
from gateway.orchestrator import Orchestrator
from gateway.pool import Pool
from gateway.retry import RetryPolicy
from gateway.router import PolicyRouter
from gateway.routing.registry import make_policy
from gateway.service import SERVICE_NAME, InferenceService
from gateway.text import load_codec
from gateway.validate import Validator
from gateway.worker_directory import WorkerDirectory

logger = logging.getLogger(__name__)


class Gateway:
    """Owns everything in the process but the directory's making; closes that too."""

    def __init__(
        self,
        config: GatewayConfig,
        spec: ModelSpec,
        directory: WorkerDirectory,
        limits: Limits | None = None,
        tracing: Tracing | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Call on the event loop. `metrics`: with what the directory's making has put there.

        Raises:
            BatonError: The model folder has no usable tokenizer, the file of API keys or the folder of certificates is
                none, or there is no such routing policy.
        """
        limits = limits or Limits()
        tls = make_tls(config.tls_dir, config.mtls)
        codec = load_codec(Path(spec.path))
        self._config = config
        self._directory = directory
        self._tracing = tracing or Tracing("baton-gateway", config.otlp_endpoint, tls=tls)
        self.metrics = metrics or Metrics()
        self.metrics_port: int | None = None  # once started, where there is one
        self._scrapes: ScrapeServer | None = None
        figures = GatewayMetrics(self.metrics, config.slo)
        self.pool = Pool(directory, limits, tls)
        PoolFigures(self.metrics, self.pool)
        policy = make_policy(config.routing_policy)
        router = PolicyRouter(self.pool, directory, spec.fingerprint, limits, policy)
        self.access = access = Access(KeyFile(config.api_keys) if config.api_keys else None)
        core = AdmissionCore(config.admission, asyncio.get_running_loop().time)
        self.admission = admission = Admission(core, AdmissionMetrics(self.metrics))
        self.orchestrator = Orchestrator(
            self.pool, router, limits, RetryPolicy(max_attempts=config.max_attempts), figures, admission.worker_refused
        )
        self._server = Server([SERVICE_NAME, ADMIN_NAME], tls, config.shared_port)
        self._http: HttpServer | None = None
        self.http_port: int | None = None  # once started, where there is one
        validator = Validator(spec, codec, config.max_message_mib)
        chat = ChatConfig(config.tool_call_parser, config.reasoning_parser)
        service = InferenceService(
            spec, codec, validator, self.pool, self.orchestrator, self._tracing, chat, figures, admission, access
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(service, self._server.grpc)
        admin = AdminService(access, self.pool, core, limits)
        admin_pb2_grpc.add_AdminServicer_to_server(admin, self._server.grpc)
        add_channelz(self._server.grpc, access)
        if config.http_port is not None:
            front = Front(service, codec, spec.name, config.max_message_mib, config.http_timeout_s, access)
            self._http = HttpServer(make_app(front, self.pool, config.otlp_endpoint, tls), tls, config.shared_port)

    async def start(self) -> int:
        """Serves, whether or not workers are there yet. Returns the port.

        Raises:
            BatonError: FAILED_PRECONDITION when the port is taken.
        """
        port = await self._server.start(self._config.host, self._config.port)
        await self.pool.start()
        if self._http is not None and self._config.http_port is not None:
            self.http_port = await self._http.start(self._config.host, self._config.http_port)
            logger.info("serving HTTP on %s:%d", self._config.host, self.http_port)
        if self._config.metrics_port is not None:
            self._scrapes = ScrapeServer(self.metrics, self._config.host, self._config.metrics_port)
            self.metrics_port = self._scrapes.port
        await self._server.set_serving(True)
        logger.info("serving on %s:%d", self._config.host, port)
        return port

    async def close(self) -> None:
        """Ends running requests, frees what they hold on workers, exports the last spans. Idempotent."""
        await self._server.set_serving(False)
        if self._http is not None:
            await self._http.close()
        await self._server.close()
        await self.orchestrator.close()
        await self.pool.close()
        await self._directory.close()
        if self._scrapes is not None:
            await self._scrapes.close()
        await asyncio.to_thread(self._tracing.close)
