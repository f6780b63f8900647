"""The command line of a worker service."""

import argparse
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from baton.arguments import parse_bytes
from baton.config import POLICIES, PROCESS_CONNECTORS
from baton.errors import BatonError
from baton.fetch.cache import parse_model
from baton.load_options import LoadFormat, ModelImpl, default_name
from baton.tls import MTLS_HELP, TLS_DIR_HELP
from baton.worker.advertise import AUTO, own_address


class WorkerOptions(msgspec.Struct, frozen=True):
    """A worker service's settings; defaults stand in `parse_options`."""

    model: str
    model_name: str | None
    load_format: str
    model_impl: str
    name: str
    host: str
    port: int
    advertise_address: str | None
    redis_url: str
    otlp_endpoint: str | None
    tls_dir: Path | None
    mtls: bool
    device: str
    dtype: str
    block_size: int
    kv_cache_bytes: int | None
    gpu_memory_utilization: float
    swap_space_bytes: int
    max_model_len: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int | None
    scheduling_policy: str
    priority_aging_s: float
    num_threads: int | None
    connector: str
    lease_s: float
    longest_write_s: float
    clock_margin_s: float
    no_prefix_caching: bool
    no_step_overlap: bool
    growth_reserve_blocks: int
    drain_timeout_s: float
    port_file: str | None
    metrics_port: int | None
    metrics_port_file: str | None
    step_log: str | None = None
    aggregated: bool = False

    @property
    def advertised_host(self) -> str:
        """The host of `advertise_address`; "" when there is none."""
        return (self.advertise_address or "").rpartition(":")[0].strip("[]")

    @property
    def served_name(self) -> str:
        """What clients call the model."""
        return self.model_name or default_name(self.model)


def parse_options(role: str, arguments: Sequence[str] | None = None, can_aggregate: bool = False) -> WorkerOptions:
    """Reads `arguments`, or the process's; prints what is wrong and exits 2 where they make no sense.

    `--advertise-address auto` becomes an address, with port 0 where that is to be a free one; it exits 1 when there is
    none.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {role}_service",
        description=f"A {role} worker of Baton.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_service(parser, role)
    _add_engine(parser)
    if can_aggregate:
        parser.add_argument(
            "--aggregated", action="store_true", help="register for requests that are prefilled and decoded here"
        )
    options = WorkerOptions(**vars(parser.parse_args(arguments)))
    if options.advertise_address != AUTO:
        return options
    try:
        return msgspec.structs.replace(options, advertise_address=f"{own_address(options.redis_url)}:{options.port}")
    except BatonError as error:
        parser.exit(1, f"error: {error.message}\n")


def _add_service(parser: argparse.ArgumentParser, role: str) -> None:
    add = parser.add_argument_group("service").add_argument
    add("--name", default=f"{role}-{uuid.uuid4().hex[:6]}", help="unique among the workers of this model")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=_Count(0), default=0, help="port to listen on; 0 takes a free one")
    add(
        "--advertise-address",
        metavar="HOST:PORT",
        help="what gateways and workers connect to; auto: this machine's address on the way to Redis, and the port; "
        "default: --host and the port",
    )
    add("--redis-url", default="redis://127.0.0.1:6379/0", help="the worker directory")
    add("--otlp-endpoint", metavar="HOST:PORT", help="OTLP gRPC receiver for traces; default: none")
    add("--tls-dir", type=Path, help=TLS_DIR_HELP)
    add("--mtls", action="store_true", help=MTLS_HELP)
    add(
        "--drain-timeout-s",
        type=_time,
        default=20.0,
        help="what runs has so long to end after SIGTERM; a second one, or SIGINT, stops at once",
    )
    add("--port-file", metavar="PATH", help="where to write the port once the worker serves")
    add("--metrics-port", type=_Count(0), help="Prometheus metrics; 0 takes a free port; default: none are served")
    add("--metrics-port-file", metavar="PATH", help="the same for --metrics-port; written first")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("engine").add_argument
    add("--model", required=True, type=parse_model, help="a fetched model's name, a model folder or a .gguf file")
    add("--model-name", help="what clients call the model; default: the folder's name")
    add("--load-format", default="auto", choices=[*LoadFormat], help="of the weights; dummy: random ones")
    add("--model-impl", default="auto", choices=[*ModelImpl], help="whose model code; auto: ours where it can")
    add("--device", default="cpu", help="cpu, cuda or cuda:N")
    add("--dtype", default="float32", choices=("float32", "float16", "bfloat16"), help="of weights and KV")
    add("--block-size", type=_Count(1), default=16, help="tokens in a KV block")
    add(
        "--kv-cache-bytes",
        type=parse_bytes,
        help="KV pool, for example 512MiB; default: 1GiB on the CPU, on a GPU what --gpu-memory-utilization leaves",
    )
    add("--gpu-memory-utilization", type=_share, default=0.9, help="of a GPU: weights, activations and KV pool")
    add("--swap-space-bytes", type=parse_bytes, default="512MiB", help="host memory for preempted requests; 0: none")
    add("--max-model-len", type=_Count(2), help="prompt and output together, in tokens; default: the model's")
    add("--max-num-batched-tokens", type=_Count(1), default=512, help="tokens in one step")
    add("--max-num-seqs", type=_Count(1), default=64, help="requests in one step")
    add(
        "--long-prefill-token-threshold",
        type=_Count(1),
        help="most tokens of one prompt in a step while others want some; default: half of --max-num-batched-tokens",
    )
    add("--scheduling-policy", default="fcfs", choices=POLICIES, help="who is served first")
    add("--priority-aging-s", type=_seconds, default=10.0, help="waiting so long counts as one priority level")
    add("--growth-reserve-blocks", type=_Count(0), default=2, help="blocks kept free for each running request")
    add("--no-step-overlap", action="store_true", help="plan a step on a GPU only when the one before has ended")
    add("--no-prefix-caching", action="store_true", help="compute every prompt in full")
    add("--num-threads", type=_Count(1), help="CPU threads for tensor work; default: torch's")
    add("--step-log", metavar="FILE", help="a line for each engine step, for `baton simulate fit`; default: none")
    add("--connector", default="nixl", choices=PROCESS_CONNECTORS, help="how KV travels")
    add("--lease-s", type=_seconds, default=60.0, help="life of a grant")
    add("--longest-write-s", type=_seconds, default=2.0, help="a KV write takes no longer, from post to completion")
    add("--clock-margin-s", type=_seconds, default=1.0, help="clocks of two workers differ by no more than this")


class _Count:
    """An integer of at least `minimum`."""

    def __init__(self, minimum: int) -> None:
        self._minimum = minimum

    def __call__(self, text: str) -> int:
        if not re.fullmatch(r"-?\d+", text) or int(text) < self._minimum:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected an integer of at least {self._minimum}")
        return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a share above 0 and at most 1")
    return value


def _time(text: str) -> float:
    return 0.0 if text == "0" else _seconds(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected seconds above 0")
    return value
