"""`LocalStack`: starts all processes of a stack on this machine, waits until they serve, stops every one."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from baton.config import StackOptions
from baton.errors import BatonError, ErrorCode
from baton.fetch import resolve_model
from baton.load_options import default_name, is_gguf
from baton.local.child import Child
from baton.local.commands import (
    SERVICES,
    ServiceCommand,
    Surroundings,
    gateway_command,
    http_port_file,
    metrics_port_file,
    redis_command,
    worker_commands,
)
from baton.local.ports import check_can_listen, free_port
from baton.local.readiness import reachable_host, read_port, wait_for_page, wait_for_redis, wait_for_service
from baton.local.run_folder import new_run_folder
from baton.local.tracing_ui import tracing_ui
from baton.telemetry.collector import Collector
from baton.tls import Tls, make_tls

_STOP_GRACE_S = 8.0
_REDIS_ATTEMPTS = 3


class LocalStack:
    """Redis, collector, gateway and workers. The collector runs in this process, the others are its children.

    Use as a context manager, or call `start` and `stop`. Whatever happens to this
    process, SIGKILL included, the children do not outlive it (see `baton.local.guard`). After `start`:

    - `gateway_address`, `otlp_address` (also the TraceStore's): host:port; `http_url`, `redis_url`, `ui_url`: URLs
    - `metrics_urls`: service name ("gateway" or a worker's) to the URL of its Prometheus metrics
    - `worker_addresses`: worker name ("prefill-0", "decode-0", "aggregated-0") to host:port
    - `pids`: process name ("redis", "gateway" or a worker's) to process id
    """

    def __init__(
        self,
        options: StackOptions,
        services: Mapping[str, Sequence[str]] = SERVICES,
        on_progress: Callable[[str], None] = lambda message: None,
        stop_grace_s: float = _STOP_GRACE_S,
    ) -> None:
        """Starts nothing yet.

        Args:
            options: the stack's shape.
            services: what to run as "gateway", "prefill" and "decode"; the flags are appended.
            on_progress: told what is being waited for.
            stop_grace_s: how long processes may take to stop before they are killed.
        """
        self.options = options
        self.gateway_address = ""
        self.http_url = ""
        self.ui_url = ""
        self.otlp_address = ""
        self.redis_url = ""
        self.tls: Tls | None = None
        self.run_folder = Path()
        self.worker_addresses: dict[str, str] = {}
        self._services = services
        self._on_progress = on_progress
        self._stop_grace_s = stop_grace_s
        self._children: dict[str, Child] = {}
        self._commands: dict[str, ServiceCommand] = {}
        self._collector: Collector | None = None
        # One thread starts all children and ends in `stop`: a child dies with the thread that started it (see guard).
        self._spawner = ThreadPoolExecutor(1, "stack-spawner")
        self._stopped = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name, of the processes that run."""
        return {name: child.pid for name, child in self._children.items() if child.exit_code() is None}

    def start(self) -> None:
        """Returns when all processes serve. On any failure, Ctrl-C included, everything started is stopped again.

        Raises:
            BatonError: the reason, with the end of the log of the process at fault.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Asks all processes to stop, kills those that do not, closes the collector. Idempotent.

        Clients of Redis go first. Workers do not drain: there is nobody left to take over. A second Ctrl-C in the
        meantime kills at once.
        """
        if self._stopped:
            return
        try:
            self._spawner.submit(lambda: None).result()  # behind a start that an interrupt has cut short
            deadline_s = time.monotonic() + self._stop_grace_s
            services = [child for name, child in self._children.items() if name != "redis"]
            for group in (services, [child for child in self._children.values() if child not in services]):
                for child in group:
                    child.terminate_now() if child.name in self.worker_addresses else child.terminate()
                for child in group:
                    child.wait(deadline_s)
        finally:
            for child in self._children.values():
                child.kill()
            if self._collector is not None:
                self._collector.close()
            self._spawner.shutdown()
            self._stopped = True

    @property
    def metrics_urls(self) -> dict[str, str]:
        """URLs of the Prometheus metrics of the services that serve them."""
        services = {"gateway": self.gateway_address, **self.worker_addresses}
        ports = {name: read_port(metrics_port_file(self.run_folder, name)) for name in services}
        hosts = {name: address.rpartition(":")[0] for name, address in services.items()}
        return {name: f"http://{hosts[name]}:{port}/metrics" for name, port in ports.items() if port is not None}

    def check_running(self) -> None:
        """Raises:
        BatonError: INTERNAL naming the first process that has ended, with the end of its log.
        """
        for name in [name for name in self.worker_addresses if name in self._children]:
            if self._children[name].exit_code() == 0:
                del self._children[name]  # drained
        for child in self._children.values():
            child.check_running()

    def log_tails(self) -> str:
        """The last lines of every service's log, for an error message."""
        return "\n".join(child.log_tail() for name, child in self._children.items() if name != "redis")

    def kill(self, name: str) -> None:
        """Kills a process and its own children with SIGKILL, as a crash would; for tests of recovery."""
        self._children.pop(self._known(name)).kill()

    def restart(self, name: str, same_port: bool = False) -> str:
        """Kills a gateway or worker if it still runs and starts it anew; returns its new address."""
        if name in self._children:
            self.kill(name)
        service = self._commands[self._known(name)]
        if same_port:
            command = [*service.command, "--port", str(read_port(service.port_file))]  # the last one counts
            service = service._replace(command=command)
        self.worker_addresses.pop(name, None)
        self._spawn(service)
        self._wait_for(service, time.monotonic() + self.options.start_timeout_s)
        return self.gateway_address if name == "gateway" else self.worker_addresses[name]

    def _known(self, name: str) -> str:
        if name not in self._children and name not in self._commands:
            known = ", ".join(sorted({*self._children, *self._commands}))
            raise BatonError(ErrorCode.NOT_FOUND, f"got process {name!r}, expected one of {known}")
        return name

    def _start(self) -> None:
        options = self.options
        model_path = resolve_model(options.model)
        check_can_listen(options.host, options.port, "--port")
        check_can_listen(options.host, options.listen_http_port, "--http-port")
        deadline_s = time.monotonic() + options.start_timeout_s
        self.run_folder = new_run_folder()
        self.tls = make_tls(options.tls_dir, options.mtls)
        ui = tracing_ui(options.ui_port, self.run_folder) if options.ui else None
        if ui:
            self._start_child("phoenix", ui.command, ui.environment)
        forward_to = f"http://{ui.otlp_address}" if ui else options.otlp_endpoint
        self._collector = Collector(forward_to=forward_to, tls=self.tls)
        self.otlp_address = self._collector.address
        self._start_redis(deadline_s)
        name = options.model_name or (default_name(options.model) if is_gguf(options.model) else model_path.name)
        around = Surroundings(model_path, name, self.redis_url, self.otlp_address, self.run_folder, _tls_flags(options))
        workers = worker_commands(options, around, self._services)
        gateway = gateway_command(options, around, self._services["gateway"])
        self._commands = {service.name: service for service in (*workers, gateway)}
        # The gateway last: it finds all workers registered and serves no request without them.
        for group in (workers, [gateway]):
            for service in group:
                self._spawn(service)
            for service in group:
                self._wait_for(service, deadline_s)
        if ui:
            self._on_progress("Waiting for phoenix")
            wait_for_page(self._children["phoenix"], ui.health_url, deadline_s)
            self.ui_url = ui.url

    def _start_redis(self, deadline_s: float) -> None:
        """A port that was free a moment ago can be taken by the time Redis binds it: then another one is tried."""
        self._on_progress("Starting redis")
        for attempt in range(_REDIS_ATTEMPTS):
            port = free_port()
            child = self._start_child("redis", redis_command(port, self.run_folder))
            try:
                wait_for_redis(child, port, deadline_s)
            except BatonError:
                if child.exit_code() is None or attempt == _REDIS_ATTEMPTS - 1 or "in use" not in child.log_tail():
                    raise
            else:
                self.redis_url = f"redis://127.0.0.1:{port}/0"
                return

    def _spawn(self, service: ServiceCommand) -> None:
        service.port_file.unlink(missing_ok=True)
        self._start_child(service.name, service.command)

    def _start_child(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        def run() -> Child:
            self._children[name] = Child(name, command, self.run_folder, environment)
            return self._children[name]

        return self._spawner.submit(run).result()

    def _wait_for(self, service: ServiceCommand, deadline_s: float) -> None:
        self._on_progress(f"Waiting for {service.name}")
        child = self._children[service.name]
        address = wait_for_service(child, service.port_file, service.host, deadline_s, self.check_running, self.tls)
        if service.name == "gateway":
            self.gateway_address = address
            # Written before the port file that has been waited for.
            scheme = "http" if self.tls is None else "https"
            self.http_url = f"{scheme}://{reachable_host(service.host)}:{read_port(http_port_file(self.run_folder))}"
        else:
            self.worker_addresses[service.name] = address


def _tls_flags(options: StackOptions) -> list[str]:
    """For every service."""
    if options.tls_dir is None:
        return []
    return ["--tls-dir", options.tls_dir, *(["--mtls"] if options.mtls else [])]
