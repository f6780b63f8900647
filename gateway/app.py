"""One gateway process: builds its parts, starts and stops them."""

import asyncio
import logging
from pathlib import Path

from baton.grpc_util.server import Server
from baton.model_spec import ModelSpec
from baton.rpc import inference_pb2_grpc
from baton.telemetry.tracing import Tracing
from gateway.config import GatewayConfig, Limits
from gateway.orchestrator import Orchestrator
from gateway.pool import Pool
from gateway.retry import RetryPolicy
from gateway.router import LongestPrefix
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
    ) -> None:
        """Call on the event loop.

        Raises:
            BatonError: The model folder has no usable tokenizer.
        """
        limits = limits or Limits()
        codec = load_codec(Path(spec.path))
        self._config = config
        self._directory = directory
        self._tracing = tracing or Tracing("baton-gateway", config.otlp_endpoint)
        self.pool = Pool(directory, limits)
        router = LongestPrefix(self.pool, directory, spec.fingerprint, limits)
        self.orchestrator = Orchestrator(self.pool, router, limits, RetryPolicy(max_attempts=config.max_attempts))
        self._server = Server([SERVICE_NAME])
        validator = Validator(spec, codec, config.max_message_mib)
        service = InferenceService(spec, codec, validator, self.pool, self.orchestrator, self._tracing)
        inference_pb2_grpc.add_InferenceServicer_to_server(service, self._server.grpc)

    async def start(self) -> int:
        """Serves, whether or not workers are there yet. Returns the port.

        Raises:
            BatonError: FAILED_PRECONDITION when the port is taken.
        """
        port = await self._server.start(self._config.host, self._config.port)
        await self.pool.start()
        await self._server.set_serving(True)
        logger.info("serving on %s:%d", self._config.host, port)
        return port

    async def close(self) -> None:
        """Ends running requests, frees what they hold on workers, exports the last spans. Idempotent."""
        await self._server.set_serving(False)
        await self._server.close()
        await self.orchestrator.close()
        await self.pool.close()
        await self._directory.close()
        await asyncio.to_thread(self._tracing.close)
