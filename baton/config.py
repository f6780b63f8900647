"""The local stack's options: one frozen value, built from flags, BATON_* environment variables and defaults."""

import dataclasses
import math
import os
import typing
from collections.abc import Callable, Mapping
from typing import Any

from baton.arguments import BadArgument, parse_bytes, show_bytes
from baton.errors import BatonError, invalid
from baton.load_options import LoadFormat, ModelImpl

ENVIRONMENT_PREFIX = "BATON_"
POLICIES = ("fcfs", "priority")
DTYPES = ("float32", "bfloat16", "float16")
PROCESS_CONNECTORS = ("nixl",)  # those of kv_transfer/registry.py that work between processes
_HTTP_PORT = 8000
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _option(
    default: Any, help_text: str, parse: Callable[[str], Any] | None = None, show: Callable[[Any], str] = str
) -> Any:
    """`parse`: for a type that does not read its own text; `show`: the default in the help."""
    return dataclasses.field(default=default, metadata={"help": help_text, "parse": parse, "show": show})


@dataclasses.dataclass(frozen=True)
class StackOptions:
    """What `baton up`, `baton demo` and `baton config` share. Each field is a flag and an environment variable."""

    model: str = _option("smollm2-135m", "A fetched model's name, a model folder or a .gguf file.")
    model_name: str | None = _option(None, "What clients call the model; default: the folder's name.")
    load_format: str = _option("auto", f"Of the weights: {', '.join(LoadFormat)} (random ones).")
    model_impl: str = _option("auto", f"Whose model code: {', '.join(ModelImpl)}.")
    aggregated: bool = _option(False, "One kind of worker that prefills and decodes, instead of two apart.")
    prefill: int = _option(1, "Number of prefill workers; not used with --aggregated.")
    decode: int = _option(1, "Number of decode (or aggregated) workers.")
    host: str = _option("127.0.0.1", "The address that the gateway listens on; the workers stay on 127.0.0.1.")
    port: int = _option(8080, "The gateway's port for gRPC; 0 takes a free one.")
    http_port: int | None = _option(
        None, f"The gateway's port for HTTP; default: {_HTTP_PORT}, or a free one with --port 0."
    )
    tool_call_parser: str = _option("auto", "How the model writes tool calls; `baton gateway --help` lists the names.")
    reasoning_parser: str = _option("none", "How the model writes its reasoning; likewise.")
    tls_dir: str | None = _option(None, "Folder with ca.pem, cert.pem, key.pem: TLS between all; default: none.")
    mtls: bool = _option(False, "With --tls-dir: whoever calls needs a certificate, too.")
    api_keys: str | None = _option(None, "The gateway's file of API keys (`baton key`); default: none are needed.")
    device: str = _option("cpu", "Where the workers compute: cpu, cuda, cuda:1, ...")
    dtype: str = _option("float32", "Of weights and KV: float32, bfloat16 or float16.")
    connector: str = _option("nixl", "How KV moves between workers.")
    block_size: int = _option(16, "Tokens in a KV block.")
    kv_cache_bytes: int | None = _option(
        None,
        "Size of each worker's KV pool, for example 512MiB; default: 1 GiB on the CPU, on a GPU what "
        "--gpu-memory-utilization leaves.",
        parse_bytes,
        show_bytes,
    )
    gpu_memory_utilization: float = _option(0.9, "Share of a GPU's memory for all workers together.")
    swap_space_bytes: int = _option(
        512 << 20, "Each decode worker's host memory for preempted requests; 0: none.", parse_bytes, show_bytes
    )
    max_model_len: int | None = _option(None, "Longest prompt plus answer in tokens; default: the model's.")
    max_num_batched_tokens: int = _option(512, "Tokens in one engine step.")
    max_num_seqs: int = _option(64, "Requests in one engine step.")
    scheduling_policy: str = _option("fcfs", "Who is served first: fcfs or priority.")
    num_threads: int | None = _option(None, "CPU threads of each worker; default: all cores.")
    lease_s: float = _option(60.0, "How long a grant for a KV transfer lives.")
    longest_write_s: float = _option(2.0, "The longest that one KV write can take.")
    clock_margin_s: float = _option(1.0, "How far the workers' clocks can be apart.")
    drain_timeout_s: float = _option(20.0, "How long a drained worker's requests have to end, before they are moved.")
    step_log: str | None = _option(None, "A folder for a file of steps from each worker; see `baton simulate fit`.")
    otlp_endpoint: str | None = _option(None, "host:port of an OTLP gRPC receiver that gets all spans too.")
    ui: bool = _option(False, "A page with all traces: Arize Phoenix, from the extra `ui`.")
    ui_port: int = _option(6006, "That page's port; 0 takes a free one.")
    start_timeout_s: float = _option(180.0, "How long the processes may take to become healthy.")

    def __post_init__(self) -> None:
        """Raises:
        BatonError: INVALID_ARGUMENT naming the first value that is out of range.
        """
        at_least = {"prefill": 1, "decode": 1, "block_size": 1, "kv_cache_bytes": 1 << 20}
        at_least |= {"max_model_len": 2, "max_num_batched_tokens": 1, "max_num_seqs": 1, "num_threads": 1}
        at_least |= {"swap_space_bytes": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise invalid(f"got {flag(name)} {value}, expected at least {least}")
        if not 0 <= self.drain_timeout_s < math.inf:
            raise invalid(f"got --drain-timeout-s {self.drain_timeout_s}, expected seconds, 0 or more")
        for name in ("lease_s", "longest_write_s", "clock_margin_s", "start_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:  # not a number fails, too
                raise invalid(f"got {flag(name)} {getattr(self, name)}, expected seconds above 0")
        if self.ui and self.otlp_endpoint:
            raise invalid(
                f"got --ui and --otlp-endpoint {self.otlp_endpoint}, expected one: spans go on to one receiver"
            )
        for name in ("port", "http_port", "ui_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise invalid(f"got {flag(name)} {value}, expected 0 to 65535")
        for name, known in (("load_format", LoadFormat), ("model_impl", ModelImpl)):
            if getattr(self, name) not in list(known):
                raise invalid(f"got {flag(name)} {getattr(self, name)}, expected one of {', '.join(known)}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise invalid(f"got --gpu-memory-utilization {self.gpu_memory_utilization}, expected above 0 and at most 1")
        if self.scheduling_policy not in POLICIES:
            raise invalid(f"got --scheduling-policy {self.scheduling_policy}, expected one of {', '.join(POLICIES)}")
        if self.dtype not in DTYPES:
            raise invalid(f"got --dtype {self.dtype}, expected one of {', '.join(DTYPES)}")
        if self.connector not in PROCESS_CONNECTORS:
            raise invalid(f"got --connector {self.connector}, expected {' or '.join(PROCESS_CONNECTORS)}")

    @property
    def listen_http_port(self) -> int:
        """Where HTTP is served; 0: on any free port."""
        if self.http_port is not None:
            return self.http_port
        return _HTTP_PORT if self.port else 0

    @property
    def num_workers(self) -> int:
        """All that share the device."""
        return self.decode + (0 if self.aggregated else self.prefill)


class Setting(typing.NamedTuple):
    """One effective value and where it came from."""

    name: str
    value: Any
    source: str  # "default", "environment BATON_..." or "flag --..."


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def environment_variable(name: str) -> str:
    """The environment variable of a field."""
    return ENVIRONMENT_PREFIX + name.upper()


def field_types() -> dict[str, type]:
    """Each field's type, without the `| None` of those that may be unset."""
    hints = typing.get_type_hints(StackOptions)
    return {name: next((t for t in typing.get_args(hint) if t is not type(None)), hint) for name, hint in hints.items()}


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> tuple[StackOptions, list[Setting]]:
    """Flags (None: not given) before environment before defaults.

    Raises:
        BatonError: INVALID_ARGUMENT for a value that does not parse or is out of range.
    """
    types = field_types()
    settings = []
    for field in dataclasses.fields(StackOptions):
        variable = environment_variable(field.name)
        if flags.get(field.name) is not None:
            settings.append(Setting(field.name, flags[field.name], f"flag {flag(field.name)}"))
        elif environ.get(variable, "") != "":
            value = _parse(variable, environ[variable], field.metadata["parse"] or types[field.name])
            settings.append(Setting(field.name, value, f"environment {variable}"))
        else:
            settings.append(Setting(field.name, field.default, "default"))
    try:
        return StackOptions(**{setting.name: setting.value for setting in settings}), settings
    except BatonError as error:
        sources = ", ".join(s.source for s in settings if s.source.startswith("environment"))
        raise BatonError(error.code, error.message + (f" (set are: {sources})" if sources else "")) from error


def _parse(variable: str, text: str, kind: Callable[[str], Any]) -> Any:
    if kind is bool:
        if text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        raise invalid(f"got {variable}={text!r}, expected one of {', '.join(_TRUE + _FALSE)}")
    try:
        return kind(text)
    except BadArgument as error:
        raise invalid(f"{variable}: {error}") from error
    except ValueError as error:
        raise invalid(f"got {variable}={text!r}, expected {kind.__name__}") from error
