"""Command line of the gateway: `python -m gateway --model FOLDER`."""

import argparse
import asyncio
import logging
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from baton.directory.followed import FollowedDirectory
from baton.errors import BatonError
from baton.fetch.cache import parse_model
from baton.grpc_util.server import TRANSPORT_MAX_BYTES
from baton.load_options import LoadFormat, default_name
from baton.model_folder import servable_folder
from baton.model_spec import load_model_spec
from baton.telemetry.exposition import Metrics
from baton.tls import MTLS_HELP, TLS_DIR_HELP
from gateway.app import Gateway
from gateway.config import GatewayConfig
from gateway.parsing.registry import REASONING_PARSER_NAMES, TOOL_PARSER_NAMES
from gateway.processes import Processes, write_atomically
from gateway.routing.registry import POLICY_NAMES

_MAX_PROCESSES = 64
_TRANSPORT_MAX_MIB = TRANSPORT_MAX_BYTES >> 20


def parse_args(argv: Sequence[str] | None = None) -> GatewayConfig:
    """Exits with status 2 and a message when an option is missing or out of range."""
    defaults = GatewayConfig(model=Path())
    parser = argparse.ArgumentParser(prog="python -m gateway", description="Baton's gateway: the gRPC front.")
    parser.add_argument(
        "--model", type=parse_model, required=True, help="name, folder or .gguf file, the same as the workers'"
    )
    parser.add_argument("--model-name", help="what clients call the model; default: the folder's name")
    parser.add_argument(
        "--load-format", type=LoadFormat, choices=[*LoadFormat], default=defaults.load_format, help="the workers'"
    )
    parser.add_argument("--host", default=defaults.host, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=defaults.port, help="0 takes a free one (%(default)s)")
    parser.add_argument("--http-port", type=int, help="of the HTTP API; 0 takes a free one; default: no HTTP")
    parser.add_argument(
        "--http-timeout-s",
        type=float,
        default=defaults.http_timeout_s,
        help="the longest that an HTTP request may take (%(default)s)",
    )
    parser.add_argument(
        "--redis-url", default=defaults.redis_url, help="worker directory; redis+cluster://… of a cluster (%(default)s)"
    )
    parser.add_argument("--otlp-endpoint", help="host:port of an OTLP gRPC receiver for spans; default: none")
    parser.add_argument(
        "--max-message-mib",
        type=int,
        default=defaults.max_message_mib,
        help=f"largest request, 1 to {_TRANSPORT_MAX_MIB} MiB (%(default)s)",
    )
    parser.add_argument(
        "--max-attempts",
        type=int,
        default=defaults.max_attempts,
        help="how often a request is tried when workers fail it; 1: once (%(default)s)",
    )
    parser.add_argument(
        "--routing-policy",
        choices=POLICY_NAMES,
        default=defaults.routing_policy,
        help="how workers are chosen (%(default)s)",
    )
    parser.add_argument(
        "--tool-call-parser",
        choices=TOOL_PARSER_NAMES,
        default=defaults.tool_call_parser,
        help="how the model writes tool calls; auto: as its chat template does (%(default)s)",
    )
    parser.add_argument(
        "--reasoning-parser",
        choices=REASONING_PARSER_NAMES,
        default=defaults.reasoning_parser,
        help="how the model writes what it thinks first (%(default)s)",
    )
    parser.add_argument(
        "--gateway-processes",
        dest="processes",
        type=int,
        default=defaults.processes,
        help="that share --port and --http-port; metrics ports count up from --metrics-port (%(default)s)",
    )
    parser.add_argument("--shared-port", action="store_true", help=argparse.SUPPRESS)  # one of those processes
    parser.add_argument("--port-file", type=Path, help="gets the bound port once the gateway serves")
    parser.add_argument("--http-port-file", type=Path, help="the same for --http-port; written first")
    parser.add_argument("--metrics-port", type=int, help="of Prometheus metrics; 0 takes a free one; default: none")
    parser.add_argument("--metrics-port-file", type=Path, help="the same for --metrics-port; written first")
    for name, what in (("ttft", "time to first token"), ("itl", "mean time between its tokens")):
        default = getattr(defaults, f"slo_{name}_ms")
        text = f"objective for a request's {what}, for metrics (%(default)g)"
        parser.add_argument(f"--slo-{name}-ms", type=float, default=default, help=text)
    parser.add_argument("--tls-dir", type=Path, help=TLS_DIR_HELP)
    parser.add_argument("--mtls", action="store_true", help=MTLS_HELP)
    parser.add_argument("--api-keys", type=Path, help="file of API keys that clients need (`baton key`); default: none")
    parser.add_argument(
        "--max-queued",
        type=int,
        default=defaults.max_queued,
        help="requests that may wait to be started (%(default)s)",
    )
    parser.add_argument(
        "--max-queued-per-client",
        type=int,
        default=defaults.max_queued_per_client,
        help="the same of one client (%(default)s)",
    )
    options = parser.parse_args(argv)
    if not 1 <= options.max_message_mib <= _TRANSPORT_MAX_MIB:
        parser.error(f"--max-message-mib: got {options.max_message_mib}, expected 1 to {_TRANSPORT_MAX_MIB}")
    if options.max_attempts < 1:
        parser.error(f"--max-attempts: got {options.max_attempts}, expected at least 1")
    for flag, count in (
        ("--max-queued", options.max_queued),
        ("--max-queued-per-client", options.max_queued_per_client),
    ):
        if count < 1:
            parser.error(f"{flag}: got {count}, expected at least 1")
    if not 1 <= options.processes <= _MAX_PROCESSES:
        parser.error(f"--gateway-processes: got {options.processes}, expected 1 to {_MAX_PROCESSES}")
    if not 0 <= options.port <= 65535:
        parser.error(f"--port: got {options.port}, expected 0 to 65535")
    if options.http_port is not None and not 0 <= options.http_port <= 65535:
        parser.error(f"--http-port: got {options.http_port}, expected 0 to 65535")
    if not 0 < options.http_timeout_s < math.inf:
        parser.error(f"--http-timeout-s: got {options.http_timeout_s}, expected seconds above 0")
    if options.metrics_port is not None and not 0 <= options.metrics_port <= 65535:
        parser.error(f"--metrics-port: got {options.metrics_port}, expected 0 to 65535")
    for flag, value in (("--slo-ttft-ms", options.slo_ttft_ms), ("--slo-itl-ms", options.slo_itl_ms)):
        if not 0 < value < math.inf:
            parser.error(f"{flag}: got {value}, expected milliseconds above 0")
    return GatewayConfig(**vars(options) | {"model": Path(options.model)})


async def serve(config: GatewayConfig, arguments: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT. The exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if config.processes > 1:
        return await Processes(config, arguments).run(stop)
    await _serve_here(config, stop)
    return 0


async def _serve_here(config: GatewayConfig, stop: asyncio.Event) -> None:
    folder = await asyncio.to_thread(servable_folder, config.model, config.load_format)
    spec = load_model_spec(folder, config.model_name or default_name(config.model), config.load_format)
    metrics = Metrics()
    directory = FollowedDirectory(config.redis_url, spec.fingerprint, metrics)
    gateway = Gateway(config, spec, directory, metrics=metrics)
    try:
        port = await gateway.start()
        if config.http_port_file is not None and gateway.http_port is not None:
            write_atomically(config.http_port_file, str(gateway.http_port))
        if config.metrics_port_file is not None and gateway.metrics_port is not None:
            write_atomically(config.metrics_port_file, str(gateway.metrics_port))
        if config.port_file is not None:
            write_atomically(config.port_file, str(port))
        await stop.wait()
    finally:
        await gateway.close()


def main() -> int:
    """The process's exit status: 0 after a signal, 1 when the gateway cannot start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return asyncio.run(serve(parse_args(), sys.argv[1:]))
    except BatonError as error:
        print(f"gateway: {error.message}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
